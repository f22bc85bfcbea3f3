//! Names of tensors: the keys that lead to them from the root of a checkpoint, joined by dots.

use super::objects::{ContainerKind, Objects, Value};
use crate::limits::MAX_NAMES_LEN;

/// Containers inside of containers that are followed.
const MAX_DEPTH: usize = 100;

/// A tensor under a name.
pub(super) struct Named {
    pub(super) name: String,
    /// Its number.
    pub(super) tensor: usize,
}

/// Every tensor that the root leads to. A container that is there twice is followed once, so the work is bounded by the
/// size of the pickle.
pub(super) fn of_tensors(objects: &Objects, root: Value) -> Result<Vec<Named>, String> {
    let mut walk = Walk {
        objects,
        seen: vec![false; objects.n_containers()],
        path: String::new(),
        names_len: 0,
        found: Vec::new(),
    };
    walk.visit(root, 0)?;
    Ok(walk.found)
}

struct Walk<'a> {
    objects: &'a Objects,
    seen: Vec<bool>,
    path: String,
    names_len: usize,
    found: Vec<Named>,
}

impl Walk<'_> {
    fn visit(&mut self, value: Value, depth: usize) -> Result<(), String> {
        match value {
            Value::Tensor(tensor) => {
                // One long key would be repeated in the name of every tensor below it.
                self.names_len += self.path.len();
                if self.names_len > MAX_NAMES_LEN {
                    return Err(format!("names of tensors take more than {MAX_NAMES_LEN} bytes"));
                }
                self.found.push(Named { name: self.path.clone(), tensor: tensor as usize });
            }
            Value::Container(id) if !std::mem::replace(&mut self.seen[id.index()], true) => {
                if depth == MAX_DEPTH {
                    return Err(format!("containers are nested more than {MAX_DEPTH} deep"));
                }
                let objects = self.objects;
                match objects.kind(id) {
                    ContainerKind::Sequence => {
                        for (i, &item) in objects.items(id).iter().enumerate() {
                            self.visit_under(format_args!("{i}"), item, depth)?;
                        }
                    }
                    ContainerKind::Dict | ContainerKind::Layer => {
                        for pair in objects.items(id).chunks_exact(2) {
                            match pair[0] {
                                Value::Text(key) => {
                                    self.visit_under(format_args!("{}", objects.str(key)), pair[1], depth)?;
                                }
                                Value::Int(key) => self.visit_under(format_args!("{key}"), pair[1], depth)?,
                                Value::None if objects.kind(id) == ContainerKind::Layer => {
                                    self.visit(pair[1], depth + 1)?;
                                }
                                _ => self.visit_under(format_args!("?"), pair[1], depth)?,
                            }
                        }
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn visit_under(
        &mut self,
        key: std::fmt::Arguments<'_>,
        value: Value,
        depth: usize,
    ) -> Result<(), String> {
        if !matches!(value, Value::Tensor(_) | Value::Container(_)) {
            return Ok(());
        }
        let len = self.path.len();
        if depth > 0 && !self.path.is_empty() {
            self.path.push('.');
        }
        // Writing to a string cannot fail.
        let _ = std::fmt::Write::write_fmt(&mut self.path, key);
        let result = self.visit(value, depth + 1);
        self.path.truncate(len);
        result
    }
}
