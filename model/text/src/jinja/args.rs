//! Arguments of calls, bound to parameters as Python does.

use std::rc::Rc;

use super::budget::{charge, room, ELEMENT, STEP};
use super::{fail, Result, Value};

#[derive(Default)]
pub struct Args<'t> {
    pub positional: Vec<Value<'t>>,
    pub named: Vec<(String, Value<'t>)>,
}

impl<'t> Args<'t> {
    /// The same once more, for a filter that is called for each item.
    pub fn copy(&self) -> Result<Args<'t>> {
        let names = self.named.iter().map(|(name, _)| name.len()).sum();
        charge(STEP + (self.positional.len() + self.named.len()) * ELEMENT)?;
        room(names)?;
        Ok(Args { positional: self.positional.clone(), named: self.named.clone() })
    }

    pub fn plain(self) -> Args<'t> {
        Args {
            positional: self.positional.iter().map(Value::plain).collect(),
            named: self.named.into_iter().map(|(name, value)| (name, value.plain())).collect(),
        }
    }

    /// Binds to the parameters of `what`, at least the first `required` of them.
    pub fn bind<const N: usize>(
        self,
        what: &str,
        names: [&str; N],
        required: usize,
    ) -> Result<[Option<Value<'t>>; N]> {
        if self.positional.len() > N {
            fail!("{what}() takes at most {N} arguments ({} given)", self.positional.len());
        }
        let mut bound = [const { None }; N];
        for (slot, value) in bound.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            match names.iter().position(|known| *known == name && !known.is_empty()) {
                None => fail!("{what}() got an unexpected keyword argument '{name}'"),
                Some(at) if bound[at].is_some() => {
                    fail!("{what}() got multiple values for argument '{name}'")
                }
                Some(at) => bound[at] = Some(value),
            }
        }
        for (slot, name) in bound.iter().zip(names).take(required) {
            if slot.is_none() {
                fail!("{what}() missing required argument '{name}'");
            }
        }
        Ok(bound)
    }
}

/// A string argument; fails for other types.
pub fn text(value: Option<Value<'_>>, default: &str, what: &str) -> Result<Rc<str>> {
    match value {
        None => Ok(default.into()),
        Some(Value::Str(s)) => Ok(s),
        Some(other) => {
            other.check_defined()?;
            fail!("{what}: expected a str, found {}", other.type_name())
        }
    }
}

/// An integer argument; fails for other types.
pub fn integer(value: Option<Value<'_>>, default: i128, what: &str) -> Result<i128> {
    match value {
        None => Ok(default),
        Some(value) => match value.as_index() {
            Some(i) => Ok(i),
            None => {
                value.check_defined()?;
                fail!("{what}: '{}' object cannot be interpreted as an integer", value.type_name())
            }
        },
    }
}

pub fn flag(value: Option<Value<'_>>, default: bool) -> Result<bool> {
    value.map_or(Ok(default), |value| value.truthy())
}
