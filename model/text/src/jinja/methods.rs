//! Methods of Python's own types, those that do not change the object.

use std::rc::Rc;

use super::args::Args;
use super::eval::Renderer;
use super::value::ViewKind;
use super::{fail, ops, str_methods, Result, Value};

const DICT: [&str; 5] = ["get", "items", "keys", "values", "copy"];
const LIST: [&str; 3] = ["count", "index", "copy"];
const TUPLE: [&str; 2] = ["count", "index"];
const INT: [&str; 2] = ["bit_length", "is_integer"];
const FLOAT: [&str; 1] = ["is_integer"];

pub fn find(object: &Value<'_>, name: &str) -> Option<&'static str> {
    let names: &[&'static str] = match object {
        Value::Str(_) => &str_methods::NAMES,
        Value::Dict(_) => &DICT,
        Value::List(_) => &LIST,
        Value::Tuple(_) => &TUPLE,
        Value::Int(_) | Value::Bool(_) => &INT,
        Value::Float(_) => &FLOAT,
        _ => &[],
    };
    names.iter().copied().find(|known| *known == name)
}

/// Attributes of Jinja's own helper objects.
pub fn object_attribute<'t>(object: &Value<'t>, name: &str) -> Option<Value<'t>> {
    let method = |name| Some(Value::Method(Rc::new((object.clone(), name))));
    match (object, name) {
        (Value::Cycler(cycler), "current") => Some(cycler.0[*cycler.1.borrow()].clone()),
        (Value::Cycler(_), "next") => method("next"),
        (Value::Cycler(_), "reset") => method("reset"),
        (Value::Macro(m), "name") => Some(Value::str(m.name())),
        _ => None,
    }
}

pub fn call<'t>(
    renderer: &mut Renderer<'t>,
    object: &Value<'t>,
    name: &str,
    args: Args<'t>,
) -> Result<Value<'t>> {
    match object {
        Value::Str(s) => str_methods::call(s, name, args),
        Value::Dict(dict) => match name {
            "get" => {
                let [key, default] = args.bind(name, ["", ""], 1)?;
                let found = dict.get(&key.unwrap_or(Value::None))?.cloned();
                Ok(found.or(default).unwrap_or(Value::None))
            }
            "copy" => args.bind::<0>(name, [], 0).map(|_| object.clone()),
            "items" => {
                args.bind::<0>(name, [], 0).map(|_| Value::view(ViewKind::Items, dict.items()))
            }
            "keys" => args.bind::<0>(name, [], 0).map(|_| Value::view(ViewKind::Keys, dict.keys())),
            _ => args.bind::<0>(name, [], 0).map(|_| Value::view(ViewKind::Values, dict.values())),
        },
        Value::List(items) | Value::Tuple(items) => match name {
            "copy" => args.bind::<0>(name, [], 0).map(|_| object.clone()),
            "count" => {
                let [item] = args.bind(name, [""], 1)?;
                let item = item.unwrap_or(Value::None);
                Ok(Value::Int(items.iter().filter(|x| ops::equal(x, &item)).count() as i128))
            }
            _ => {
                let [item] = args.bind(name, [""], 1)?;
                let item = item.unwrap_or(Value::None);
                match items.iter().position(|x| ops::equal(x, &item)) {
                    Some(at) => Ok(Value::Int(at as i128)),
                    None => fail!("{} is not in {}", super::repr::repr(&item)?, object.type_name()),
                }
            }
        },
        Value::Int(i) => Ok(match name {
            "bit_length" => Value::Int(128 - i.unsigned_abs().leading_zeros() as i128),
            _ => Value::Bool(true),
        }),
        Value::Float(f) => Ok(Value::Bool(f.is_finite() && f.fract() == 0.0)),
        Value::Loop(state) => match name {
            "cycle" if args.positional.is_empty() => fail!("no items for cycling given"),
            "cycle" => Ok(args.positional[state.at.get() % args.positional.len()].clone()),
            _ => Ok(renderer.loop_changed(state, args.positional)),
        },
        Value::Cycler(cycler) => {
            let mut at = cycler.1.borrow_mut();
            let current = cycler.0[*at].clone();
            *at = if name == "reset" { 0 } else { (*at + 1) % cycler.0.len() };
            Ok(if name == "reset" { Value::None } else { current })
        }
        other => fail!("'{}' object has no attribute '{name}'", other.type_name()),
    }
}
