//! The objects that a pickle builds, in one place: values refer to them by number, so sharing and cycles are harmless.

use super::globals::{Elements, Global};
use crate::limits::{MAX_PICKLE_CONTAINERS, MAX_RANK};
use std::collections::HashMap;

/// A value on the stack or in a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    None,
    Int(i64),
    /// Anything that neither is a tensor nor leads to one: floats, bytes, large integers, long texts.
    Plain,
    Text(Text),
    Container(ContainerId),
    Global(Global),
    Storage(u32),
    Tensor(u32),
}

impl Value {
    pub(super) fn as_u64(self) -> Option<u64> {
        match self {
            Self::Int(value) => u64::try_from(value).ok(),
            _ => None,
        }
    }
}

/// A text, kept with all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Text {
    start: u32,
    len: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ContainerId(u32);

impl ContainerId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContainerKind {
    Sequence,
    /// Keys and values in turn.
    Dict,
    /// A layer: keys and values in turn, without a key what it was made of.
    Layer,
}

#[derive(Debug)]
struct Container {
    kind: ContainerKind,
    items: Vec<Value>,
}

/// A storage, as the pickle names it.
#[derive(Debug)]
pub(super) struct StorageRecord {
    pub(super) key: String,
    pub(super) elements: Elements,
    n_elements: u64,
}

impl StorageRecord {
    /// Bytes that it must have.
    pub(super) fn raw_len(&self) -> u64 {
        self.n_elements * self.elements.len
    }
}

/// A tensor: some elements of a storage.
#[derive(Debug)]
pub(super) struct TensorRecord {
    pub(super) storage: usize,
    /// In elements.
    pub(super) offset: u64,
    pub(super) size: ContainerId,
    pub(super) stride: ContainerId,
    /// Unless they are those of the storage.
    pub(super) elements: Option<Elements>,
}

/// Everything that a pickle has built.
#[derive(Debug, Default)]
pub(super) struct Objects {
    containers: Vec<Container>,
    texts: String,
    pub(super) storages: Vec<StorageRecord>,
    storage_by_key: HashMap<String, u32>,
    pub(super) tensors: Vec<TensorRecord>,
}

impl Objects {
    pub(super) fn container(&mut self, kind: ContainerKind, items: Vec<Value>) -> Result<Value, String> {
        let id = u32::try_from(self.containers.len())
            .ok()
            .filter(|_| self.containers.len() < MAX_PICKLE_CONTAINERS);
        let id = id.ok_or_else(|| format!("more than {MAX_PICKLE_CONTAINERS} containers"))?;
        self.containers.push(Container { kind, items });
        Ok(Value::Container(ContainerId(id)))
    }

    pub(super) fn items(&self, id: ContainerId) -> &[Value] {
        &self.containers[id.index()].items
    }

    pub(super) fn kind(&self, id: ContainerId) -> ContainerKind {
        self.containers[id.index()].kind
    }

    pub(super) fn n_containers(&self) -> usize {
        self.containers.len()
    }

    /// Adds items to a container of a kind.
    pub(super) fn extend(
        &mut self,
        to: Value,
        kind: ContainerKind,
        items: &[Value],
    ) -> Result<(), &'static str> {
        match to {
            Value::Container(id) if self.kind(id) == kind => {
                self.containers[id.index()].items.extend_from_slice(items);
                Ok(())
            }
            // One that is also a list or a dictionary.
            Value::Container(id) if self.kind(id) == ContainerKind::Layer => {
                let object = &mut self.containers[id.index()].items;
                match kind {
                    ContainerKind::Sequence => {
                        object.extend(items.iter().flat_map(|&item| [Value::None, item]))
                    }
                    _ => object.extend_from_slice(items),
                }
                Ok(())
            }
            _ => Err("items for something that takes none"),
        }
    }

    /// Gives a layer its state, which is not copied.
    pub(super) fn add_state(&mut self, of: Value, state: Value) {
        if let Value::Container(id) = of
            && self.kind(id) == ContainerKind::Layer
        {
            self.containers[id.index()].items.extend([Value::None, state]);
        }
    }

    pub(super) fn text(&mut self, text: &str) -> Value {
        let start = u32::try_from(self.texts.len());
        match (start, u32::try_from(text.len())) {
            (Ok(start), Ok(len)) => {
                self.texts.push_str(text);
                Value::Text(Text { start, len })
            }
            _ => Value::Plain,
        }
    }

    pub(super) fn str(&self, text: Text) -> &str {
        &self.texts[text.start as usize..][..text.len as usize]
    }

    /// The storage that a persistent identifier names.
    pub(super) fn storage(&mut self, id: Value) -> Result<Value, String> {
        let Value::Container(tuple) = id else { return Err("storage without a name".to_owned()) };
        // Files of the layout before PyTorch 1.6 say behind it that it is no part of another one.
        let &[
            Value::Text(tag),
            Value::Global(Global::Storage(elements)),
            Value::Text(key),
            Value::Text(_),
            Value::Int(n),
            ref rest @ ..,
        ] = self.items(tuple)
        else {
            return Err("persistent identifier that names no storage".to_owned());
        };
        let n_elements = u64::try_from(n).ok().filter(|n| n.checked_mul(elements.len).is_some());
        let is_whole = matches!(rest, [] | [Value::None]);
        let Some(n_elements) = n_elements.filter(|_| is_whole && self.str(tag) == "storage") else {
            return Err("persistent identifier that names no storage".to_owned());
        };
        let key = self.str(key).to_owned();
        if let Some(&known) = self.storage_by_key.get(&key) {
            let record = &self.storages[known as usize];
            if (record.elements, record.n_elements) != (elements, n_elements) {
                return Err(format!("storage `{}` with two types", crate::tensor_info::shown(&key)));
            }
            return Ok(Value::Storage(known));
        }
        let number = u32::try_from(self.storages.len()).map_err(|_| "too many storages".to_owned())?;
        self.storage_by_key.insert(key.clone(), number);
        self.storages.push(StorageRecord { key, elements, n_elements });
        Ok(Value::Storage(number))
    }

    /// What calling a global with some arguments makes.
    pub(super) fn call(&mut self, function: Value, arguments: Value) -> Result<Value, &'static str> {
        let Value::Global(global) = function else { return Err("call of something that is no function") };
        let Value::Container(tuple) = arguments else { return Err("call without arguments") };
        let arguments = self.items(tuple);
        match (global, arguments) {
            (Global::Plain, _) => Ok(Value::Plain),
            (Global::Layer, _) => self
                .container(ContainerKind::Layer, vec![Value::None, Value::Container(tuple)])
                .map_err(|_| "too many containers"),
            (Global::Dict, _) => self.dict(tuple),
            (Global::Size | Global::Sequence, &[Value::Container(list)])
                if self.kind(list) == ContainerKind::Sequence =>
            {
                Ok(Value::Container(list))
            }
            (Global::Sequence, &[]) => {
                self.container(ContainerKind::Sequence, Vec::new()).map_err(|_| "too many containers")
            }
            (Global::RebuildTensor, &[storage, offset, size, stride, ..]) => {
                self.tensor([storage, offset, size, stride], None)
            }
            (
                Global::RebuildTensorWithDtype,
                &[storage, offset, size, stride, _, _, Value::Global(Global::Dtype(elements)), ..],
            ) => self.tensor([storage, offset, size, stride], Some(elements)),
            (Global::RebuildFromFirst, &[first @ (Value::Tensor(_) | Value::Container(_)), ..]) => Ok(first),
            (Global::RebuildFromType, &[function, Value::Global(Global::Plain | Global::Layer), arguments, ..])
                // One level is all that torch writes, and keeps this from calling itself for ever.
                if function != Value::Global(Global::RebuildFromType) =>
            {
                self.call(function, arguments)
            }
            (Global::RebuildFromParts, _) => Ok(Value::Container(tuple)),
            _ => Err("call with arguments that do not fit"),
        }
    }

    fn dict(&mut self, arguments: ContainerId) -> Result<Value, &'static str> {
        match self.items(arguments) {
            // Empty, or with what makes missing values.
            [] | [Value::Global(_)] => {
                self.container(ContainerKind::Dict, Vec::new()).map_err(|_| "too many containers")
            }
            // Not copied: a copy per call would let a short pickle fill memory.
            &[Value::Container(id)] if self.kind(id) == ContainerKind::Dict => Ok(Value::Container(id)),
            _ => Err("call with arguments that do not fit"),
        }
    }

    fn tensor(&mut self, parts: [Value; 4], elements: Option<Elements>) -> Result<Value, &'static str> {
        let [Value::Storage(storage), offset, Value::Container(size), Value::Container(stride)] = parts
        else {
            return Err("tensor without a storage, size or stride");
        };
        let offset = offset.as_u64().ok_or("tensor with a negative offset")?;
        if self.items(size).len() > MAX_RANK {
            return Err("tensor of too many dimensions");
        }
        let number = u32::try_from(self.tensors.len()).map_err(|_| "too many tensors")?;
        self.tensors.push(TensorRecord { storage: storage as usize, offset, size, stride, elements });
        Ok(Value::Tensor(number))
    }
}
