//! Equality, order and membership. Values may be shared, so that what is compared is charged at each
//! visit: a comparison of values that are made of each other sixty times over would never end.

use std::cmp::Ordering;
use std::rc::Rc;

use super::budget::{charge, charge_bytes, charge_text, ELEMENT};
use super::value::View;
use super::walk::Walk;
use super::{fail, Error, Result, Value};

pub fn is_number(value: &Value<'_>) -> bool {
    matches!(value, Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::BigInt(_))
}

fn compare_numbers(a: &Value<'_>, b: &Value<'_>) -> Option<Ordering> {
    match (a.as_index(), b.as_index()) {
        (Some(x), Some(y)) => Some(x.cmp(&y)),
        _ => match (a, b) {
            (Value::BigInt(x), Value::BigInt(y)) if x == y => Some(Ordering::Equal),
            // An integer that a double cannot hold is told apart from the double next to it.
            (Value::Int(x), Value::Float(y)) if y.is_finite() && (*x as f64) == *y => {
                Some(x.cmp(&(*y as i128)))
            }
            (Value::Float(x), Value::Int(y)) if x.is_finite() && (*y as f64) == *x => {
                Some((*x as i128).cmp(y))
            }
            _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
        },
    }
}

fn all_equal<'t>(x: &[Value<'t>], y: &[Value<'t>]) -> Result<bool> {
    if x.len() != y.len() {
        return Ok(false);
    }
    for (x, y) in x.iter().zip(y) {
        if !equal(x, y)? {
            return Ok(false);
        }
    }
    Ok(true)
}

pub fn equal<'t>(a: &Value<'t>, b: &Value<'t>) -> Result<bool> {
    charge(ELEMENT)?;
    Ok(match (a, b) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(x) | Value::Markup(x), Value::Str(y) | Value::Markup(y)) => {
            if x.len() == y.len() {
                charge_bytes(x.len())?;
            }
            x == y
        }
        // What is the same object is equal, whatever it holds.
        (Value::List(x), Value::List(y)) | (Value::Tuple(x), Value::Tuple(y)) => {
            Rc::ptr_eq(x, y) || all_equal(x, y)?
        }
        (Value::Dict(x), Value::Dict(y)) if Rc::ptr_eq(x, y) => true,
        (Value::Dict(x), Value::Dict(y)) => {
            if x.len() != y.len() {
                return Ok(false);
            }
            for (key, value) in x.iter() {
                match y.get(key)? {
                    Some(other) if equal(value, other)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::View(x), Value::View(y)) => match (&**x, &**y) {
            (View::Range(x), View::Range(y)) => {
                x.len == y.len
                    && (x.len == 0 || x.start == y.start)
                    && (x.len < 2 || x.step == y.step)
            }
            (View::Keys(_), View::Keys(_)) | (View::Items(_), View::Items(_)) => {
                x.len() == y.len() && has_all(b, a)?
            }
            _ => Rc::ptr_eq(x, y),
        },
        (Value::Iter(x), Value::Iter(y)) => Rc::ptr_eq(x, y),
        (Value::Namespace(x), Value::Namespace(y)) => Rc::ptr_eq(x, y),
        (Value::Macro(x), Value::Macro(y)) => Rc::ptr_eq(x, y),
        (Value::Loop(x), Value::Loop(y)) => Rc::ptr_eq(x, y),
        (Value::Cycler(x), Value::Cycler(y)) => Rc::ptr_eq(x, y),
        (Value::Joiner(x), Value::Joiner(y)) => Rc::ptr_eq(x, y),
        (Value::Function(x), Value::Function(y)) => x == y,
        _ => is_number(a) && is_number(b) && compare_numbers(a, b) == Some(Ordering::Equal),
    })
}

/// Whether a view of a dict has all items of another one, in whatever order.
fn has_all<'t>(view: &Value<'t>, other: &Value<'t>) -> Result<bool> {
    for item in other.iterate()? {
        if !contains(view, &item?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Python's `<` and its kin; fails where Python raises.
pub fn compare<'t>(a: &Value<'t>, b: &Value<'t>, op: &str) -> Result<Option<Ordering>> {
    charge(ELEMENT)?;
    a.check_defined()?;
    b.check_defined()?;
    match (a, b) {
        (Value::Str(x) | Value::Markup(x), Value::Str(y) | Value::Markup(y)) => {
            charge_bytes(x.len().min(y.len()))?;
            // The order of UTF-8's bytes is that of the characters.
            Ok(Some(x.cmp(y)))
        }
        (Value::List(x), Value::List(y)) | (Value::Tuple(x), Value::Tuple(y)) => {
            for (x, y) in x.iter().zip(y.iter()) {
                if !equal(x, y)? {
                    return compare(x, y, op);
                }
            }
            Ok(Some(x.len().cmp(&y.len())))
        }
        _ if is_number(a) && is_number(b) => Ok(compare_numbers(a, b)),
        _ => fail!(
            "'{op}' not supported between instances of '{}' and '{}'",
            a.type_name(),
            b.type_name()
        ),
    }
}

/// A stable sort by a key, as list.sort; fails when two keys cannot be compared.
pub fn sort_by<'t, T>(items: &mut [T], key: impl Fn(&T) -> &Value<'t>) -> Result<()> {
    charge(items.len().saturating_mul(ELEMENT))?;
    let mut error: Option<Error> = None;
    items.sort_by(|a, b| {
        if error.is_some() {
            return Ordering::Equal;
        }
        match compare(key(a), key(b), "<") {
            Ok(order) => order.unwrap_or(Ordering::Equal),
            Err(e) => {
                error = Some(e);
                Ordering::Equal
            }
        }
    });
    error.map_or(Ok(()), Err)
}

pub fn contains<'t>(container: &Value<'t>, item: &Value<'t>) -> Result<bool> {
    let (container, item) = (&container.plain(), &item.plain());
    match container {
        Value::Str(text) => match item {
            Value::Str(part) => {
                charge_text(text.len())?;
                Ok(text.contains(&**part))
            }
            other => {
                fail!("'in <string>' requires string as left operand, not {}", other.type_name())
            }
        },
        Value::Dict(dict) => Ok(dict.get(item)?.is_some()),
        Value::View(view) => match (&**view, item) {
            (View::Keys(dict), _) => Ok(dict.get(item)?.is_some()),
            (View::Range(range), Value::Int(_) | Value::Bool(_)) => {
                Ok(item.as_index().is_some_and(|number| range.position(number).is_some()))
            }
            (View::Items(dict), Value::Tuple(pair)) if pair.len() == 2 => {
                Ok(match dict.get(&pair[0])? {
                    Some(value) => equal(value, &pair[1])?,
                    None => false,
                })
            }
            (View::Items(_), _) => Ok(false),
            _ => any_equal(container, item),
        },
        _ => any_equal(container, item),
    }
}

fn any_equal<'t>(container: &Value<'t>, item: &Value<'t>) -> Result<bool> {
    let Some(walk) = Walk::over(container) else {
        fail!("argument of type '{}' is not iterable", container.type_name())
    };
    for other in walk {
        if equal(&other?, item)? {
            return Ok(true);
        }
    }
    Ok(false)
}
