//! Methods of Python's own types, those that do not change the object.

use super::args::Args;
use super::budget::charge_items;
use super::compare::equal;
use super::eval::Renderer;
use super::value::View;
use super::{fail, str_methods, Dict, Result, Value};

const DICT: [&str; 6] = ["get", "items", "keys", "values", "copy", "fromkeys"];
const LIST: [&str; 3] = ["count", "index", "copy"];
const TUPLE: [&str; 2] = ["count", "index"];
const INT: [&str; 5] = ["bit_length", "bit_count", "is_integer", "conjugate", "as_integer_ratio"];
const FLOAT: [&str; 2] = ["is_integer", "conjugate"];
const CYCLER: [&str; 2] = ["next", "reset"];

pub fn find(object: &Value<'_>, name: &str) -> Option<&'static str> {
    let names: &[&'static str] = match object {
        Value::Str(_) | Value::Markup(_) => &str_methods::NAMES,
        Value::Dict(_) => &DICT,
        Value::List(_) => &LIST,
        Value::Tuple(_) => &TUPLE,
        Value::View(view) if matches!(**view, View::Range(_)) => &TUPLE,
        Value::Int(_) | Value::Bool(_) => &INT,
        Value::Float(_) => &FLOAT,
        Value::Cycler(_) => &CYCLER,
        _ => &[],
    };
    names.iter().copied().find(|known| *known == name)
}

/// Attributes that are no methods.
pub fn property<'t>(object: &Value<'t>, name: &str) -> Option<Value<'t>> {
    Some(match (object, name) {
        (Value::Tuple(group), "grouper") if group.is_group => group[0].clone(),
        (Value::Tuple(group), "list") if group.is_group => group[1].clone(),
        (Value::Cycler(cycler), "current") => cycler.items[cycler.at.get()].clone(),
        (Value::Cycler(cycler), "pos") => Value::Int(cycler.at.get() as i128),
        (Value::Cycler(cycler), "items") => Value::Tuple(cycler.items.clone()),
        (Value::Joiner(joiner), "sep") => Value::Str(joiner.separator.clone()),
        (Value::Joiner(joiner), "used") => Value::Bool(joiner.used.get()),
        (Value::Macro(m), "name") => Value::str(m.name()),
        (Value::Int(_) | Value::Bool(_), "real" | "numerator") => Value::Int(object.as_index()?),
        (Value::Int(_) | Value::Bool(_), "imag") => Value::Int(0),
        (Value::Int(_) | Value::Bool(_), "denominator") => Value::Int(1),
        (Value::Float(f), "real") => Value::Float(*f),
        (Value::Float(_), "imag") => Value::Float(0.0),
        (Value::View(view), "start" | "stop" | "step") => match &**view {
            View::Range(range) => Value::Int(match name {
                "start" => range.start,
                "stop" => range.stop,
                _ => range.step,
            }),
            _ => return None,
        },
        _ => return None,
    })
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
            "fromkeys" => from_keys(args),
            _ => {
                args.bind::<0>(name, [], 0)?;
                Ok(match name {
                    "copy" => object.clone(),
                    "items" => Value::view(View::Items(dict.clone())),
                    "keys" => Value::view(View::Keys(dict.clone())),
                    _ => Value::view(View::Values(dict.clone())),
                })
            }
        },
        Value::List(_) | Value::Tuple(_) | Value::View(_) => sequence(object, name, args),
        Value::Int(_) | Value::Bool(_) => {
            args.bind::<0>(name, [], 0)?;
            let i = object.as_index().unwrap_or(0);
            Ok(match name {
                "bit_length" => Value::Int(128 - i.unsigned_abs().leading_zeros() as i128),
                "bit_count" => Value::Int(i.unsigned_abs().count_ones() as i128),
                "conjugate" => Value::Int(i),
                "as_integer_ratio" => Value::tuple(vec![Value::Int(i), Value::Int(1)])?,
                _ => Value::Bool(true),
            })
        }
        Value::Float(f) => {
            args.bind::<0>(name, [], 0)?;
            Ok(match name {
                "conjugate" => object.clone(),
                _ => Value::Bool(f.is_finite() && f.fract() == 0.0),
            })
        }
        Value::Loop(state) => match name {
            "cycle" if args.positional.is_empty() => fail!("no items for cycling given"),
            "cycle" => Ok(args.positional[state.at.get() % args.positional.len()].clone()),
            _ => renderer.loop_changed(state, args.positional),
        },
        Value::Cycler(cycler) => {
            args.bind::<0>(name, [], 0)?;
            let at = cycler.at.get();
            let is_reset = name == "reset";
            cycler.at.set(if is_reset { 0 } else { (at + 1) % cycler.items.len() });
            Ok(if is_reset { Value::None } else { cycler.items[at].clone() })
        }
        other => fail!("'{}' object has no attribute '{name}'", other.type_name()),
    }
}

fn from_keys<'t>(args: Args<'t>) -> Result<Value<'t>> {
    let [keys, value] = args.bind("fromkeys", ["", ""], 1)?;
    let value = value.unwrap_or(Value::None);
    let mut dict = Dict::default();
    for key in keys.unwrap_or(Value::None).iterate()? {
        dict.insert(key?, value.clone())?;
    }
    Ok(Value::dict(dict))
}

/// copy, count and index.
fn sequence<'t>(object: &Value<'t>, name: &str, args: Args<'t>) -> Result<Value<'t>> {
    if name == "copy" {
        return args.bind::<0>(name, [], 0).map(|_| object.clone());
    }
    let is_range = matches!(object, Value::View(_));
    let [item, start, stop] = args.bind(name, ["", "", ""], 1)?;
    if (name == "count" || is_range) && start.is_some() {
        fail!("{name}() takes exactly one argument");
    }
    let item = item.unwrap_or(Value::None);
    if let (Value::View(view), Some(number)) = (object, item.as_index()) {
        if let View::Range(range) = &**view {
            return match (name, range.position(number)) {
                ("count", found) => Ok(Value::Int(found.is_some() as i128)),
                (_, Some(at)) => Ok(Value::Int(at as i128)),
                (_, None) => fail!("{number} is not in range"),
            };
        }
    }
    let items = object.items()?;
    if name == "count" {
        let mut count = 0;
        for other in items.iter() {
            count += equal(other, &item)? as i128;
        }
        return Ok(Value::Int(count));
    }
    let bound = |value: Option<Value<'t>>, default: i128| -> Result<usize> {
        let at = super::args::integer(value, default, name)?;
        let at = if at < 0 { at.saturating_add(items.len() as i128).max(0) } else { at };
        Ok(usize::try_from(at).unwrap_or(usize::MAX).min(items.len()))
    };
    let (start, stop) = (bound(start, 0)?, bound(stop, i128::MAX)?);
    charge_items(stop.saturating_sub(start))?;
    for (at, other) in items.iter().enumerate().take(stop).skip(start) {
        if equal(other, &item)? {
            return Ok(Value::Int(at as i128));
        }
    }
    fail!("{} is not in {}", super::repr::repr(&item)?, object.type_name())
}
