//! str.maketrans and str.translate.

use std::rc::Rc;

use super::args::Args;
use super::budget::{charge, room_for_more, STEP};
use super::{fail, Dict, Result, Value};

/// A table from numbers of characters to what stands for them.
pub fn table<'t>(args: Args<'t>) -> Result<Value<'t>> {
    let [from, to, gone] = args.bind("maketrans", ["", "", ""], 1)?;
    let mut table = Dict::default();
    let number = |c: char| Value::Int(c as i128);
    match (from.unwrap_or(Value::None), to) {
        (Value::Dict(dict), None) => {
            for (key, value) in dict.iter() {
                charge(STEP)?;
                let key = match key {
                    Value::Str(s) => {
                        let mut chars = s.chars();
                        match (chars.next(), chars.next()) {
                            (Some(c), None) => number(c),
                            _ => fail!("string keys in translate table must be of length 1"),
                        }
                    }
                    Value::Int(_) => key.clone(),
                    _ => fail!("keys in translate table must be strings or integers"),
                };
                table.insert(key, value.clone())?;
            }
        }
        (Value::Str(from), Some(Value::Str(to))) => {
            charge(from.len().saturating_add(to.len()).saturating_mul(4))?;
            if from.chars().count() != to.chars().count() {
                fail!("the first two maketrans arguments must have equal length");
            }
            for (a, b) in from.chars().zip(to.chars()) {
                charge(STEP)?;
                table.insert(number(a), number(b))?;
            }
            if let Some(Value::Str(gone)) = gone {
                for c in gone.chars() {
                    charge(STEP)?;
                    table.insert(number(c), Value::None)?;
                }
            }
        }
        _ => fail!("maketrans: expected a dict, or texts of one length"),
    }
    Ok(Value::dict(table))
}

pub fn apply<'t>(text: &Rc<str>, args: Args<'t>) -> Result<Value<'t>> {
    let [table] = args.bind("translate", [""], 1)?;
    let table = table.unwrap_or(Value::None);
    let mut out = String::new();
    for c in text.chars() {
        charge(STEP)?;
        let found = match &table {
            Value::Dict(dict) => dict.get(&Value::Int(c as i128))?.cloned(),
            Value::List(items) | Value::Tuple(items) => items.get(c as usize).cloned(),
            other => fail!("'{}' object is not subscriptable", other.type_name()),
        };
        match found {
            None => out.push(c),
            Some(Value::None) => {}
            Some(Value::Str(s)) => {
                room_for_more(&out, s.len())?;
                out.push_str(&s);
            }
            Some(other) => match other.as_index().and_then(|i| u32::try_from(i).ok()) {
                Some(code) => out.extend(char::from_u32(code)),
                None => fail!("character mapping must return integer, None or str"),
            },
        }
    }
    Ok(Value::str(out))
}
