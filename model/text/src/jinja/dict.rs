//! A dict that remembers the order of insertion.

use std::collections::HashMap;
use std::rc::Rc;

use super::budget::{charge, charge_bytes, charge_items, ELEMENT};
use super::compare::equal;
use super::value::{one_deeper, View};
use super::{fail, Result, Value};

/// So many names are found as quickly by looking at each.
const FEW: usize = 8;

#[derive(Clone, Default)]
pub struct Dict<'t> {
    entries: Vec<(Value<'t>, Value<'t>)>,
    /// Positions of the keys that are strings, nearly all of them, once there are more than a few.
    by_name: HashMap<Rc<str>, usize>,
    depth: u16,
}

impl<'t> Dict<'t> {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn depth(&self) -> u16 {
        self.depth.max(1)
    }

    pub fn entry(&self, at: usize) -> Option<&(Value<'t>, Value<'t>)> {
        self.entries.get(at)
    }

    pub fn iter(&self) -> impl Iterator<Item = &(Value<'t>, Value<'t>)> {
        self.entries.iter()
    }

    /// The same entries once more.
    pub fn copy(&self) -> Result<Dict<'t>> {
        charge_items(self.len().saturating_mul(8))?;
        Ok(self.clone())
    }

    pub fn get_name(&self, name: &str) -> Option<&Value<'t>> {
        self.position_of(name).map(|at| &self.entries[at].1)
    }

    fn position_of(&self, name: &str) -> Option<usize> {
        if self.entries.len() > FEW {
            return self.by_name.get(name).copied();
        }
        self.entries
            .iter()
            .position(|(key, _)| matches!(key, Value::Str(known) if **known == *name))
    }

    fn position(&self, key: &Value<'t>) -> Result<Option<usize>> {
        if let Value::Str(name) = key {
            charge_bytes(name.len().saturating_mul(4))?;
            return Ok(self.position_of(name));
        }
        for (at, (known, _)) in self.entries.iter().enumerate() {
            charge(ELEMENT)?;
            if !matches!(known, Value::Str(_)) && equal(known, key)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Fails for keys that have no hash.
    pub fn get(&self, key: &Value<'t>) -> Result<Option<&Value<'t>>> {
        let key = &key.plain();
        check_hashable(key)?;
        Ok(self.position(key)?.map(|at| &self.entries[at].1))
    }

    pub fn insert(&mut self, key: Value<'t>, value: Value<'t>) -> Result<()> {
        let key = key.plain();
        check_hashable(&key)?;
        let position = self.position(&key)?;
        self.put(position, key, value)
    }

    /// For what no template decides on: nothing is charged.
    pub fn set(&mut self, name: &str, value: Value<'t>) {
        self.depth = self.depth.max(value.depth().saturating_add(1));
        match self.position_of(name) {
            Some(at) => self.entries[at].1 = value,
            None => self.add(Value::str(name), value),
        }
    }

    pub fn set_name(&mut self, name: &str, value: Value<'t>) -> Result<()> {
        charge_bytes(name.len().saturating_mul(4))?;
        match self.position_of(name) {
            Some(at) => self.put(Some(at), Value::None, value),
            None => self.put(None, Value::str(name), value),
        }
    }

    /// In place of the value at that position, or as a new entry.
    fn put(&mut self, position: Option<usize>, key: Value<'t>, value: Value<'t>) -> Result<()> {
        charge(ELEMENT)?;
        self.depth = self.depth.max(one_deeper(key.depth().max(value.depth()))?);
        match position {
            Some(at) => self.entries[at].1 = value,
            None => self.add(key, value),
        }
        Ok(())
    }

    fn add(&mut self, key: Value<'t>, value: Value<'t>) {
        self.entries.push((key, value));
        match self.entries.len() {
            ..=FEW => {}
            n if n == FEW + 1 => (0..n).for_each(|at| self.index(at)),
            n => self.index(n - 1),
        }
    }

    fn index(&mut self, at: usize) {
        if let Value::Str(name) = &self.entries[at].0 {
            self.by_name.insert(name.clone(), at);
        }
    }
}

pub fn check_hashable(key: &Value<'_>) -> Result<()> {
    match key {
        Value::List(_) | Value::Dict(_) => fail!("unhashable type: '{}'", key.type_name()),
        Value::View(view) if matches!(**view, View::Keys(_) | View::Items(_)) => {
            fail!("unhashable type: '{}'", key.type_name())
        }
        Value::Tuple(items) => {
            charge_items(items.len())?;
            items.iter().try_for_each(check_hashable)
        }
        _ => Ok(()),
    }
}
