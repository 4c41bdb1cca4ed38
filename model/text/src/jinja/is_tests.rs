//! The tests behind `is`.

use std::rc::Rc;

use super::args::Args;
use super::budget::charge_text;
use super::compare::{compare, contains, equal};
use super::dict::check_hashable;
use super::repr::text_of;
use super::value::View;
use super::{fail, filters, ops, Result, Value};

pub const NAMES: [&str; 39] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

pub fn apply<'t>(name: &str, value: &Value<'t>, args: Args<'t>) -> Result<bool> {
    let is_escaped = matches!(value, Value::Markup(_));
    let value = &value.plain();
    let parameters = match name {
        "divisibleby" | "eq" | "equalto" | "==" | "ne" | "!=" | "lt" | "lessthan" | "<" | "le"
        | "<=" | "gt" | "greaterthan" | ">" | "ge" | ">=" | "in" | "sameas" => 1,
        _ => 0,
    };
    let [other] = args.plain().bind(name, ["other"], parameters)?;
    if other.is_some() && parameters == 0 {
        fail!("test '{name}' takes no argument");
    }
    let other = other.unwrap_or(Value::None);
    Ok(match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_) | Value::BigInt(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => {
            matches!(value, Value::Int(_) | Value::BigInt(_) | Value::Float(_) | Value::Bool(_))
        }
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "iterable" => is_iterable(value),
        "sequence" => match value {
            Value::Str(_)
            | Value::List(_)
            | Value::Tuple(_)
            | Value::Dict(_)
            | Value::Undefined(_) => true,
            Value::View(view) => matches!(**view, View::Range(_)),
            _ => false,
        },
        "callable" => value.callable(),
        "escaped" => is_escaped,
        "lower" => cased(value)?.chars().all(|c| !c.is_uppercase()) && has_cased(value)?,
        "upper" => cased(value)?.chars().all(|c| !c.is_lowercase()) && has_cased(value)?,
        "odd" => remainder(value, &Value::Int(2))? == 1.0,
        "even" => remainder(value, &Value::Int(2))? == 0.0,
        "divisibleby" => remainder(value, &other)? == 0.0,
        "eq" | "equalto" | "==" => equal(value, &other)?,
        "ne" | "!=" => !equal(value, &other)?,
        "lt" | "lessthan" | "<" => compare(value, &other, "<")?.is_some_and(|o| o.is_lt()),
        "le" | "<=" => compare(value, &other, "<=")?.is_some_and(|o| o.is_le()),
        "gt" | "greaterthan" | ">" => compare(value, &other, ">")?.is_some_and(|o| o.is_gt()),
        "ge" | ">=" => compare(value, &other, ">=")?.is_some_and(|o| o.is_ge()),
        "in" => contains(&other, value)?,
        "sameas" => same(value, &other)?,
        "filter" => {
            check_hashable(value)?;
            value.as_str().is_some_and(filters::exists)
        }
        "test" => {
            check_hashable(value)?;
            value.as_str().is_some_and(|name| NAMES.contains(&name))
        }
        _ => fail!("No test named '{name}'."),
    })
}

pub fn is_iterable(value: &Value<'_>) -> bool {
    matches!(
        value,
        Value::Str(_)
            | Value::List(_)
            | Value::Tuple(_)
            | Value::Dict(_)
            | Value::View(_)
            | Value::Iter(_)
            | Value::Undefined(_)
            | Value::Loop(_)
    )
}

fn cased<'v>(value: &'v Value<'_>) -> Result<std::borrow::Cow<'v, str>> {
    let text = text_of(value)?;
    charge_text(text.len())?;
    Ok(text)
}

fn has_cased(value: &Value<'_>) -> Result<bool> {
    Ok(cased(value)?.chars().any(|c| c.is_lowercase() || c.is_uppercase()))
}

fn remainder<'t>(value: &Value<'t>, by: &Value<'t>) -> Result<f64> {
    let rest = ops::arithmetic(ops::Arithmetic::Rem, value, by)?;
    match rest.as_f64() {
        Some(rest) => Ok(rest),
        None => fail!("expected a number, found {}", value.type_name()),
    }
}

fn same<'t>(a: &Value<'t>, b: &Value<'t>) -> Result<bool> {
    Ok(match (a, b) {
        (Value::Bool(x), Value::Bool(y)) => x == y,
        (Value::Bool(_), _) | (_, Value::Bool(_)) => false,
        (Value::Int(x), Value::Int(y)) => x == y,
        (Value::List(x), Value::List(y)) | (Value::Tuple(x), Value::Tuple(y)) => Rc::ptr_eq(x, y),
        (Value::Dict(x), Value::Dict(y)) => Rc::ptr_eq(x, y),
        (Value::None, Value::None) => true,
        (Value::Str(x), Value::Str(y)) => Rc::ptr_eq(x, y) || equal(a, b)?,
        _ => false,
    })
}
