//! A pickle machine that builds plain data, tensors and layers, and refuses everything else with its place. Layers are what
//! they were made of: no class is looked up, and nothing is run.
//!
//! It knows the opcodes that Python writes for such data in protocols 2 to 5. What it holds is bounded by the bytes it
//! has read: a value takes at least one byte of the pickle, and lengths are compared with what is left.

use super::globals::known;
use super::objects::{ContainerKind, Objects, Value};
use crate::ReadError;
use crate::checked_reader::{CheckedReader, Forward};
use crate::limits::{MAX_PICKLE_MEMO, MAX_PICKLE_TEXT_LEN, MAX_PICKLE_VALUES};
use crate::tensor_info::shown;
use std::collections::HashMap;
use std::ops::Range;

/// Bytes of the name of a global that are looked at.
const MAX_GLOBAL_LEN: usize = 512;

/// What a pickle has built, its value, and where it ends.
pub(super) struct Built {
    pub(super) objects: Objects,
    pub(super) root: Value,
    pub(super) end: u64,
}

impl Built {
    /// The texts of a list.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        let items = match self.root {
            Value::Container(id) => self.objects.items(id),
            _ => &[],
        };
        items.iter().filter_map(|&item| match item {
            Value::Text(text) => Some(self.objects.str(text)),
            _ => None,
        })
    }
}

/// Runs the pickle that starts these bytes of a file.
pub(super) fn run(reader: &CheckedReader<'_>, pickle: Range<u64>) -> Result<Built, ReadError> {
    let mut machine = Machine {
        input: reader.forward(pickle.start, pickle.end),
        objects: Objects::default(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        n_pushed: 0,
    };
    loop {
        let offset = machine.input.offset();
        let opcode = machine.input.u8()?;
        match machine.step(opcode) {
            Ok(None) => {}
            Ok(Some(root)) => {
                return Ok(Built { objects: machine.objects, root, end: machine.input.offset() });
            }
            Err(Stop::Failed(error)) => return Err(error),
            Err(Stop::Refused(what)) => {
                return Err(reader.invalid(format!("pickle at offset {offset}: {what}")));
            }
        }
    }
}

struct Machine<'a> {
    input: Forward<'a>,
    objects: Objects,
    stack: Vec<Value>,
    /// Heights of the stack that opcodes refer to.
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    n_pushed: usize,
}

enum Stop {
    Failed(ReadError),
    Refused(String),
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        Self::Failed(error)
    }
}

impl From<&str> for Stop {
    fn from(what: &str) -> Self {
        Self::Refused(what.to_owned())
    }
}

impl From<String> for Stop {
    fn from(what: String) -> Self {
        Self::Refused(what)
    }
}

impl Machine<'_> {
    /// Runs one opcode; returns the value of the pickle at its end.
    fn step(&mut self, opcode: u8) -> Result<Option<Value>, Stop> {
        match opcode {
            b'.' => return Ok(Some(self.pop()?)),
            // PROTO and FRAME say nothing about the data.
            0x80 => self.skip(1)?,
            0x95 => self.skip(8)?,
            b'(' => {
                if self.marks.len() == MAX_PICKLE_VALUES {
                    return Err("more marks than values may be".into());
                }
                self.marks.push(self.stack.len());
            }
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                self.pop_to_mark()?;
            }
            b'2' => {
                let top = self.peek()?;
                self.push(top)?;
            }
            b'N' => self.push(Value::None)?,
            // Truth values are numbers to Python, too.
            0x88 => self.push(Value::Int(1))?,
            0x89 => self.push(Value::Int(0))?,
            b'K' => {
                let value = self.input.u8()?;
                self.push(Value::Int(i64::from(value)))?;
            }
            b'M' => {
                let value = u16::from_le_bytes(self.input.array()?);
                self.push(Value::Int(i64::from(value)))?;
            }
            b'J' => {
                let value = i32::from_le_bytes(self.input.array()?);
                self.push(Value::Int(i64::from(value)))?;
            }
            0x8a => {
                let len = u64::from(self.input.u8()?);
                self.long(len)?;
            }
            0x8b => {
                let len = u64::from(self.input.u32()?);
                self.long(len)?;
            }
            b'G' => {
                self.skip(8)?;
                self.push(Value::Plain)?;
            }
            b'U' | 0x8c => {
                let len = u64::from(self.input.u8()?);
                self.text(len)?;
            }
            b'T' | b'X' => {
                let len = u64::from(self.input.u32()?);
                self.text(len)?;
            }
            0x8d => {
                let len = self.input.u64()?;
                self.text(len)?;
            }
            b'C' => {
                let len = u64::from(self.input.u8()?);
                self.bytes(len)?;
            }
            b'B' => {
                let len = u64::from(self.input.u32()?);
                self.bytes(len)?;
            }
            0x8e | 0x96 => {
                let len = self.input.u64()?;
                self.bytes(len)?;
            }
            b'}' => self.new_container(ContainerKind::Dict, Vec::new())?,
            b']' | b')' | 0x8f => self.new_container(ContainerKind::Sequence, Vec::new())?,
            b't' | b'l' | 0x91 => {
                let items = self.pop_to_mark()?;
                self.new_container(ContainerKind::Sequence, items)?;
            }
            b'd' => {
                let items = self.pop_to_mark()?;
                check_pairs(&items)?;
                self.new_container(ContainerKind::Dict, items)?;
            }
            0x85..=0x87 => {
                let items = self.pop_many(usize::from(opcode - 0x84))?;
                self.new_container(ContainerKind::Sequence, items)?;
            }
            b'a' => {
                let item = self.pop()?;
                self.extend(ContainerKind::Sequence, &[item])?;
            }
            b'e' | 0x90 => {
                let items = self.pop_to_mark()?;
                self.extend(ContainerKind::Sequence, &items)?;
            }
            b's' => {
                let pair = self.pop_many(2)?;
                self.extend(ContainerKind::Dict, &pair)?;
            }
            b'u' => {
                let pairs = self.pop_to_mark()?;
                check_pairs(&pairs)?;
                self.extend(ContainerKind::Dict, &pairs)?;
            }
            b'q' | b'r' | 0x94 => self.put(opcode)?,
            b'h' | b'j' => self.get(opcode)?,
            b'c' => {
                let module = self.input.line(MAX_GLOBAL_LEN, "name of a module")?;
                let name = self.input.line(MAX_GLOBAL_LEN, "name of a global")?;
                self.global(&String::from_utf8_lossy(&module), &String::from_utf8_lossy(&name))?;
            }
            0x93 => {
                let names = self.pop_many(2)?;
                let [Value::Text(module), Value::Text(name)] = names[..] else {
                    return Err("global without a name".into());
                };
                let (module, name) = (self.objects.str(module).to_owned(), self.objects.str(name).to_owned());
                self.global(&module, &name)?;
            }
            b'Q' => {
                let id = self.pop()?;
                let storage = self.objects.storage(id)?;
                self.push(storage)?;
            }
            // REDUCE and NEWOBJ differ in what Python would run; here nothing is run.
            b'R' | 0x81 => {
                let arguments = self.pop()?;
                let function = self.pop()?;
                let made = self.objects.call(function, arguments)?;
                self.push(made)?;
            }
            // BUILD sets attributes, of which no tensor's data depend; those of objects may be tensors.
            b'b' => {
                let state = self.pop()?;
                let of = self.peek()?;
                if !matches!(of, Value::Container(_) | Value::Tensor(_) | Value::Plain) {
                    return Err("state for something that has none".into());
                }
                self.objects.add_state(of, state);
            }
            _ => {
                return Err(
                    format!("opcode {opcode:#04x} is refused: only plain data and tensors are read").into()
                );
            }
        }
        Ok(None)
    }

    fn push(&mut self, value: Value) -> Result<(), Stop> {
        self.n_pushed += 1;
        if self.n_pushed > MAX_PICKLE_VALUES {
            return Err(format!("more than {MAX_PICKLE_VALUES} values").into());
        }
        self.stack.push(value);
        Ok(())
    }

    /// The height that values may be taken down to: the last mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn peek(&self) -> Result<Value, Stop> {
        self.stack[self.floor()..].last().copied().ok_or_else(|| "value that is not there".into())
    }

    fn pop(&mut self) -> Result<Value, Stop> {
        let top = self.peek()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_many(&mut self, n: usize) -> Result<Vec<Value>, Stop> {
        let start = self.stack.len().checked_sub(n).filter(|&start| start >= self.floor());
        Ok(self.stack.split_off(start.ok_or("value that is not there")?))
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Value>, Stop> {
        let mark = self.marks.pop().ok_or("mark that is not there")?;
        Ok(self.stack.split_off(mark))
    }

    fn skip(&mut self, len: u64) -> Result<(), Stop> {
        Ok(self.input.skip(len, "pickled data")?)
    }

    fn long(&mut self, len: u64) -> Result<(), Stop> {
        if len > 8 {
            return self.bytes(len);
        }
        let bytes = self.input.bytes(len, 8, "pickled number")?;
        let fill = if bytes.last().is_some_and(|top| top & 0x80 != 0) { 0xff } else { 0 };
        let mut number = [fill; 8];
        number[..bytes.len()].copy_from_slice(&bytes);
        self.push(Value::Int(i64::from_le_bytes(number)))
    }

    /// A text; long ones are no keys, and left out.
    fn text(&mut self, len: u64) -> Result<(), Stop> {
        if len > MAX_PICKLE_TEXT_LEN {
            return self.bytes(len);
        }
        let bytes = self.input.bytes(len, MAX_PICKLE_TEXT_LEN, "pickled text")?;
        let value = match std::str::from_utf8(&bytes) {
            Ok(text) => self.objects.text(text),
            Err(_) => Value::Plain,
        };
        self.push(value)
    }

    fn bytes(&mut self, len: u64) -> Result<(), Stop> {
        self.skip(len)?;
        self.push(Value::Plain)
    }

    fn new_container(&mut self, kind: ContainerKind, mut items: Vec<Value>) -> Result<(), Stop> {
        items.shrink_to_fit();
        let container = self.objects.container(kind, items)?;
        self.push(container)
    }

    fn extend(&mut self, kind: ContainerKind, items: &[Value]) -> Result<(), Stop> {
        let to = self.peek()?;
        // Attributes of numpy's and torch's plain objects.
        if to == Value::Plain {
            return Ok(());
        }
        Ok(self.objects.extend(to, kind, items)?)
    }

    fn put(&mut self, opcode: u8) -> Result<(), Stop> {
        let number = match opcode {
            b'q' => u32::from(self.input.u8()?),
            b'r' => self.input.u32()?,
            _ => u32::try_from(self.memo.len()).map_err(|_| "memo that is too large")?,
        };
        if self.memo.len() == MAX_PICKLE_MEMO {
            return Err(format!("memo of more than {MAX_PICKLE_MEMO} values").into());
        }
        let top = self.peek()?;
        self.memo.insert(number, top);
        Ok(())
    }

    fn get(&mut self, opcode: u8) -> Result<(), Stop> {
        let number = if opcode == b'h' { u32::from(self.input.u8()?) } else { self.input.u32()? };
        let value = *self.memo.get(&number).ok_or("memo that was never put")?;
        self.push(value)
    }

    fn global(&mut self, module: &str, name: &str) -> Result<(), Stop> {
        let refused = || {
            let full = shown(&format!("{module}.{name}"));
            format!(
                "global `{full}` is refused: only plain data, tensors and layers are read, and nothing is run"
            )
        };
        self.push(Value::Global(known(module, name).ok_or_else(refused)?))
    }
}

fn check_pairs(items: &[Value]) -> Result<(), Stop> {
    if items.len().is_multiple_of(2) { Ok(()) } else { Err("key without a value".into()) }
}
