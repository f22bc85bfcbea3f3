//! Numbers of things by their names, without a second copy of the names: those are kept by the things themselves.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::hash::{BuildHasher, RandomState};

/// Finds the number of a thing by its name. Every call takes `name_of`, which gives the name of each number that was
/// inserted, always the same.
#[derive(Debug, Default, Clone)]
pub struct NameTable {
    numbers: HashTable<u32>,
    hasher: RandomState,
}

impl NameTable {
    /// A table of the numbers from 0 to `len`. Of equal names, the last one counts.
    pub fn of<'a>(len: usize, name_of: impl Fn(usize) -> &'a str) -> Self {
        let mut table = Self::default();
        (0..len).for_each(|number| _ = table.insert(number, &name_of));
        table
    }

    /// Adds a number. Returns that of the same name, which it replaces.
    ///
    /// # Panics
    /// When the number has more than 32 bits.
    pub fn insert<'a>(&mut self, number: usize, name_of: impl Fn(usize) -> &'a str) -> Option<usize> {
        let name = name_of(number);
        let stored = u32::try_from(number).expect("fewer than 2^32 names");
        let hash_of = |&number: &u32| self.hasher.hash_one(name_of(number as usize));
        let entry = self.numbers.entry(
            self.hasher.hash_one(name),
            |&number| name_of(number as usize) == name,
            hash_of,
        );
        match entry {
            Entry::Occupied(mut other) => Some(std::mem::replace(other.get_mut(), stored) as usize),
            Entry::Vacant(place) => {
                place.insert(stored);
                None
            }
        }
    }

    /// The number of this name.
    pub fn find<'a>(&self, name: &str, name_of: impl Fn(usize) -> &'a str) -> Option<usize> {
        let is_it = |&number: &u32| name_of(number as usize) == name;
        self.numbers.find(self.hasher.hash_one(name), is_it).map(|&number| number as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_the_last_of_equal_ones_counts() {
        let names: Vec<String> = (0..5000).map(|i| format!("layer {}", i % 4999)).collect();
        let name_of = |number: usize| names[number].as_str();
        let mut table = NameTable::of(4999, name_of);
        assert_eq!(table.find("layer 0", name_of), Some(0));
        assert_eq!(table.find("layer 4998", name_of), Some(4998));
        assert_eq!(table.find("layer 4999", name_of), None);
        assert_eq!(table.insert(4999, name_of), Some(0));
        assert_eq!(table.find("layer 0", name_of), Some(4999));
    }
}
