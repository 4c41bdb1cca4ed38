//! Walking over what can be iterated, one item at a time.

use std::rc::Rc;

use super::budget::{charge, ELEMENT, NEW_ELEMENT};
use super::value::{Generator, Items, View};
use super::{Result, Value};

enum Source<'t> {
    Nothing,
    Text(Rc<str>),
    Items(Rc<Items<'t>>),
    Keys(Rc<super::Dict<'t>>),
    View(Rc<View<'t>>),
    Generator(Rc<Generator<'t>>),
}

/// Where it stands is an item's number, in texts a byte's.
pub struct Walk<'t> {
    source: Source<'t>,
    at: usize,
    /// An error is the last item: some of what takes items does not stop at one.
    has_failed: bool,
}

impl<'t> Walk<'t> {
    /// Nothing for what cannot be iterated.
    pub fn over(value: &Value<'t>) -> Option<Walk<'t>> {
        let source = match value {
            Value::Undefined(_) => Source::Nothing,
            Value::Str(s) | Value::Markup(s) => Source::Text(s.clone()),
            Value::List(items) | Value::Tuple(items) => Source::Items(items.clone()),
            Value::Dict(dict) => Source::Keys(dict.clone()),
            Value::View(view) => Source::View(view.clone()),
            Value::Iter(generator) => Source::Generator(generator.clone()),
            _ => return None,
        };
        Some(Walk { source, at: 0, has_failed: false })
    }

    fn make(&mut self) -> Result<Option<Value<'t>>> {
        let at = self.at;
        self.at += 1;
        charge(2 * ELEMENT)?;
        Ok(match &self.source {
            Source::Nothing => None,
            Source::Text(text) => match text[at..].chars().next() {
                None => None,
                Some(c) => {
                    charge(NEW_ELEMENT)?;
                    self.at = at + c.len_utf8();
                    Some(Value::str(c.encode_utf8(&mut [0; 4]) as &str))
                }
            },
            Source::Items(items) => items.get(at).cloned(),
            Source::Keys(dict) => dict.entry(at).map(|(key, _)| key.clone()),
            Source::View(view) => match &**view {
                View::Keys(dict) => dict.entry(at).map(|(key, _)| key.clone()),
                View::Values(dict) => dict.entry(at).map(|(_, value)| value.clone()),
                View::Items(dict) => match dict.entry(at) {
                    None => None,
                    Some((key, value)) => {
                        charge(NEW_ELEMENT)?;
                        Some(Value::tuple(vec![key.clone(), value.clone()])?)
                    }
                },
                View::Range(range) => (at < range.len).then(|| Value::Int(range.at(at))),
            },
            Source::Generator(generator) => generator.items.borrow_mut().pop_front(),
        })
    }

    /// All that are still to come.
    pub fn rest(self) -> Result<Vec<Value<'t>>> {
        let mut items = Vec::new();
        for item in self {
            charge(ELEMENT)?;
            items.push(item?);
        }
        Ok(items)
    }
}

impl<'t> Iterator for Walk<'t> {
    type Item = Result<Value<'t>>;

    fn next(&mut self) -> Option<Result<Value<'t>>> {
        if self.has_failed {
            return None;
        }
        let item = self.make();
        self.has_failed = item.is_err();
        item.transpose()
    }
}
