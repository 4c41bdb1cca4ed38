//! A dict that remembers the order of insertion.

use std::collections::HashMap;
use std::rc::Rc;

use super::ops::equal;
use super::{fail, Result, Value};

#[derive(Clone, Default)]
pub struct Dict<'t> {
    entries: Vec<(Value<'t>, Value<'t>)>,
    /// Positions of the keys that are strings: nearly all of them.
    by_name: HashMap<Rc<str>, usize>,
}

impl<'t> Dict<'t> {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &(Value<'t>, Value<'t>)> {
        self.entries.iter()
    }

    pub fn keys(&self) -> Vec<Value<'t>> {
        self.entries.iter().map(|(key, _)| key.clone()).collect()
    }

    pub fn values(&self) -> Vec<Value<'t>> {
        self.entries.iter().map(|(_, value)| value.clone()).collect()
    }

    pub fn items(&self) -> Vec<Value<'t>> {
        self.entries
            .iter()
            .map(|(key, value)| Value::tuple(vec![key.clone(), value.clone()]))
            .collect()
    }

    pub fn get_name(&self, name: &str) -> Option<&Value<'t>> {
        self.by_name.get(name).map(|&at| &self.entries[at].1)
    }

    fn position(&self, key: &Value<'t>) -> Option<usize> {
        match key {
            Value::Str(name) => self.by_name.get(name).copied(),
            _ => {
                self.entries.iter().position(|(k, _)| !matches!(k, Value::Str(_)) && equal(k, key))
            }
        }
    }

    /// Fails for keys that have no hash.
    pub fn get(&self, key: &Value<'t>) -> Result<Option<&Value<'t>>> {
        let key = &key.plain();
        check_hashable(key)?;
        Ok(self.position(key).map(|at| &self.entries[at].1))
    }

    pub fn insert(&mut self, key: Value<'t>, value: Value<'t>) -> Result<()> {
        let key = key.plain();
        check_hashable(&key)?;
        match self.position(&key) {
            Some(at) => self.entries[at].1 = value,
            None => {
                if let Value::Str(name) = &key {
                    self.by_name.insert(name.clone(), self.entries.len());
                }
                self.entries.push((key, value));
            }
        }
        Ok(())
    }

    pub fn set(&mut self, name: &str, value: Value<'t>) {
        match self.by_name.get(name) {
            Some(&at) => self.entries[at].1 = value,
            None => {
                let name: Rc<str> = name.into();
                self.by_name.insert(name.clone(), self.entries.len());
                self.entries.push((Value::Str(name), value));
            }
        }
    }
}

pub fn check_hashable(key: &Value<'_>) -> Result<()> {
    match key {
        Value::List(_) | Value::Dict(_) => fail!("unhashable type: '{}'", key.type_name()),
        Value::Tuple(items) => items.iter().try_for_each(check_hashable),
        _ => Ok(()),
    }
}
