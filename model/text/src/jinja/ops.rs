//! Operators, subscripts and attributes.

use std::cmp::Ordering;
use std::rc::Rc;

use super::filters_text::escape;
use super::value::ViewKind;
use super::{fail, format, methods, Result, Value};

/// A text longer than this is a template gone wrong.
pub const MAX_TEXT: usize = 64 << 20;

pub fn check_text(len: usize) -> Result<()> {
    if len > MAX_TEXT {
        fail!("a text is longer than {MAX_TEXT} bytes");
    }
    Ok(())
}

const MAX_REPEAT: usize = 16 << 20;

fn is_number(value: &Value<'_>) -> bool {
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

pub fn equal<'t>(a: &Value<'t>, b: &Value<'t>) -> bool {
    match (a, b) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(x) | Value::Markup(x), Value::Str(y) | Value::Markup(y)) => x == y,
        (Value::List(x), Value::List(y)) | (Value::Tuple(x), Value::Tuple(y)) => {
            x.len() == y.len() && x.iter().zip(y.iter()).all(|(x, y)| equal(x, y))
        }
        (Value::Dict(x), Value::Dict(y)) => {
            x.len() == y.len()
                && x.iter().all(
                    |(key, value)| matches!(y.get(key), Ok(Some(other)) if equal(value, other)),
                )
        }
        (Value::View(x), Value::View(y)) => {
            let same = x.items.len() == y.items.len()
                && x.items.iter().zip(&y.items).all(|(x, y)| equal(x, y));
            x.kind == y.kind && x.kind != ViewKind::Values && same
        }
        (Value::Namespace(x), Value::Namespace(y)) => Rc::ptr_eq(x, y),
        (Value::Macro(x), Value::Macro(y)) => Rc::ptr_eq(x, y),
        (Value::Function(x), Value::Function(y)) => x == y,
        _ => is_number(a) && is_number(b) && compare_numbers(a, b) == Some(Ordering::Equal),
    }
}

/// Python's `<` and its kin; fails where Python raises.
pub fn compare<'t>(a: &Value<'t>, b: &Value<'t>, op: &str) -> Result<Option<Ordering>> {
    a.check_defined()?;
    b.check_defined()?;
    match (a, b) {
        (Value::Str(x) | Value::Markup(x), Value::Str(y) | Value::Markup(y)) => {
            Ok(Some(x.chars().cmp(y.chars())))
        }
        (Value::List(x), Value::List(y)) | (Value::Tuple(x), Value::Tuple(y)) => {
            for (x, y) in x.iter().zip(y.iter()) {
                if !equal(x, y) {
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
pub fn sort_by<'t, T>(items: &mut [T], key: impl Fn(&T) -> Value<'t>) -> Result<()> {
    let mut error = None;
    items.sort_by(|a, b| {
        if error.is_some() {
            return Ordering::Equal;
        }
        match compare(&key(a), &key(b), "<") {
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
            Value::Str(part) => Ok(text.contains(&**part)),
            other => {
                fail!("'in <string>' requires string as left operand, not {}", other.type_name())
            }
        },
        Value::Dict(dict) => {
            super::dict::check_hashable(item)?;
            Ok(dict.iter().any(|(key, _)| equal(key, item)))
        }
        Value::List(items) | Value::Tuple(items) => Ok(items.iter().any(|x| equal(x, item))),
        Value::View(view) => Ok(view.items.iter().any(|x| equal(x, item))),
        other => match other.iterate() {
            Ok(items) => Ok(items.iter().any(|x| equal(x, item))),
            Err(_) => fail!("argument of type '{}' is not iterable", other.type_name()),
        },
    }
}

fn unsupported<T>(op: &str, a: &Value<'_>, b: &Value<'_>) -> Result<T> {
    fail!("unsupported operand type(s) for {op}: '{}' and '{}'", a.type_name(), b.type_name())
}

fn repeat<'t>(value: &Value<'t>, times: i128) -> Result<Value<'t>> {
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    if value.len()?.saturating_mul(times) > MAX_REPEAT {
        fail!("repeated value is too large");
    }
    let copies = |items: &Rc<Vec<Value<'t>>>| {
        items.iter().cloned().cycle().take(items.len() * times).collect()
    };
    Ok(match value {
        Value::Str(s) => Value::str(s.repeat(times)),
        Value::Tuple(items) => Value::tuple(copies(items)),
        Value::List(items) => Value::list(copies(items)),
        other => return unsupported("*", other, &Value::Int(0)),
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
}

impl Arithmetic {
    fn symbol(self) -> &'static str {
        match self {
            Arithmetic::Add => "+",
            Arithmetic::Sub => "-",
            Arithmetic::Mul => "*",
            Arithmetic::Div => "/",
            Arithmetic::FloorDiv => "//",
            Arithmetic::Rem => "%",
            Arithmetic::Pow => "** or pow()",
        }
    }
}

pub fn arithmetic<'t>(op: Arithmetic, a: &Value<'t>, b: &Value<'t>) -> Result<Value<'t>> {
    use Arithmetic::*;
    match (op, a, b) {
        (Add, Value::Markup(x), Value::Markup(y)) => {
            return Ok(Value::Markup([&**x, &**y].concat().into()))
        }
        (Add, Value::Markup(x), Value::Str(y)) => {
            return Ok(Value::Markup((x.to_string() + &escape(y)).into()))
        }
        (Add, Value::Str(x), Value::Markup(y)) => return Ok(Value::Markup((escape(x) + y).into())),
        _ => {}
    }
    let (a, b) = (&a.plain(), &b.plain());
    // printf-style formatting takes its operand before anything asks whether it is defined.
    if let (Rem, Value::Str(pattern)) = (op, a) {
        return Ok(Value::str(format::percent(pattern, b)?));
    }
    a.check_defined()?;
    b.check_defined()?;
    match (op, a, b) {
        (Add, Value::Str(x), Value::Str(y)) => return Ok(Value::str([&**x, &**y].concat())),
        (Add, Value::List(x), Value::List(y)) => return Ok(Value::list([&x[..], &y[..]].concat())),
        (Add, Value::Tuple(x), Value::Tuple(y)) => {
            return Ok(Value::tuple([&x[..], &y[..]].concat()))
        }
        (Add, Value::Str(_), other) => {
            fail!("can only concatenate str (not \"{}\") to str", other.type_name())
        }
        (Mul, Value::Str(_) | Value::List(_) | Value::Tuple(_), n) if n.as_index().is_some() => {
            return repeat(a, n.as_index().unwrap_or(0));
        }
        (Mul, n, Value::Str(_) | Value::List(_) | Value::Tuple(_)) if n.as_index().is_some() => {
            return repeat(b, n.as_index().unwrap_or(0));
        }
        _ => {}
    }
    if let (Some(x), Some(y)) = (a.as_index(), b.as_index()) {
        return integers(op, x, y);
    }
    match (a.as_f64(), b.as_f64()) {
        (Some(x), Some(y)) => floats(op, x, y).map(Value::Float),
        _ => unsupported(op.symbol(), a, b),
    }
}

fn integers<'t>(op: Arithmetic, x: i128, y: i128) -> Result<Value<'t>> {
    let result = match op {
        Arithmetic::Add => x.checked_add(y),
        Arithmetic::Sub => x.checked_sub(y),
        Arithmetic::Mul => x.checked_mul(y),
        Arithmetic::Div if y == 0 => fail!("division by zero"),
        Arithmetic::Div => return Ok(Value::Float(x as f64 / y as f64)),
        Arithmetic::FloorDiv | Arithmetic::Rem if y == 0 => {
            fail!("integer division or modulo by zero")
        }
        Arithmetic::FloorDiv => {
            let (q, r) = (x.wrapping_div(y), x.wrapping_rem(y));
            Some(if r != 0 && (r < 0) != (y < 0) { q - 1 } else { q })
        }
        Arithmetic::Rem => {
            let r = x.wrapping_rem(y);
            Some(if r != 0 && (r < 0) != (y < 0) { r + y } else { r })
        }
        Arithmetic::Pow if y < 0 => return floats(op, x as f64, y as f64).map(Value::Float),
        Arithmetic::Pow => u32::try_from(y).ok().and_then(|y| x.checked_pow(y)),
    };
    match result {
        Some(value) => Ok(Value::Int(value)),
        None => fail!("integer of more than 127 bits"),
    }
}

fn floats(op: Arithmetic, x: f64, y: f64) -> Result<f64> {
    Ok(match op {
        Arithmetic::Add => x + y,
        Arithmetic::Sub => x - y,
        Arithmetic::Mul => x * y,
        Arithmetic::Div | Arithmetic::FloorDiv | Arithmetic::Rem if y == 0.0 => {
            fail!("float division by zero")
        }
        Arithmetic::Div => x / y,
        Arithmetic::FloorDiv => {
            let r = floor_rem(x, y);
            ((x - r) / y).round()
        }
        Arithmetic::Rem => floor_rem(x, y),
        Arithmetic::Pow if x == 0.0 && y < 0.0 => fail!("0.0 cannot be raised to a negative power"),
        Arithmetic::Pow => x.powf(y),
    })
}

fn floor_rem(x: f64, y: f64) -> f64 {
    let r = x % y;
    if r != 0.0 && (r < 0.0) != (y < 0.0) {
        r + y
    } else if r == 0.0 {
        0.0f64.copysign(y)
    } else {
        r
    }
}

pub fn negate<'t>(value: &Value<'t>) -> Result<Value<'t>> {
    value.check_defined()?;
    match value {
        Value::Float(f) => Ok(Value::Float(-f)),
        _ => match value.as_index() {
            Some(i) => Ok(Value::Int(-i)),
            None => fail!("bad operand type for unary -: '{}'", value.type_name()),
        },
    }
}

fn no_attribute<'t>(object: &Value<'t>, name: &str) -> Value<'t> {
    Value::Undefined(format!("'{}' has no attribute '{name}'", object.object_name()).into())
}

fn python_attribute<'t>(object: &Value<'t>, name: &str) -> Option<Value<'t>> {
    match object {
        Value::Namespace(fields) => fields.borrow().get_name(name).cloned(),
        Value::Loop(state) => state.attribute(name),
        Value::Cycler(_) | Value::Macro(_) => methods::object_attribute(object, name),
        _ => methods::find(object, name)
            .map(|method| Value::Method(Rc::new((object.clone(), method)))),
    }
}

/// What the sandbox keeps from templates: internals, and whatever would change a value.
fn is_unsafe(object: &Value<'_>, name: &str) -> bool {
    if name.starts_with("__") {
        return true;
    }
    match object {
        Value::List(_) => {
            matches!(
                name,
                "append" | "clear" | "extend" | "insert" | "pop" | "remove" | "reverse" | "sort"
            )
        }
        Value::Dict(_) => matches!(name, "clear" | "pop" | "popitem" | "setdefault" | "update"),
        _ => false,
    }
}

fn unsafe_attribute<'t>(object: &Value<'t>, name: &str) -> Value<'t> {
    Value::Undefined(
        format!("access to attribute '{name}' of '{}' object is unsafe.", object.type_name())
            .into(),
    )
}

/// object.name: the attribute of the Python object, else its item.
pub fn get_attribute<'t>(object: &Value<'t>, name: &str) -> Result<Value<'t>> {
    let object = &object.plain();
    if !name.starts_with("__") {
        object.check_defined()?;
    }
    if is_unsafe(object, name) {
        if let (Value::Dict(dict), true) = (object, name.starts_with("__")) {
            // Most such names are no attributes of a dict, so that its own key of that name is
            // found.
            if let Some(value) = dict.get_name(name) {
                return Ok(value.clone());
            }
        }
        return Ok(unsafe_attribute(object, name));
    }
    if let Some(value) = python_attribute(object, name) {
        return Ok(value);
    }
    if let Value::Dict(dict) = object {
        if let Some(value) = dict.get_name(name) {
            return Ok(value.clone());
        }
    }
    Ok(no_attribute(object, name))
}

/// object[key]: the item, else the attribute of that name.
pub fn get_item<'t>(object: &Value<'t>, key: &Value<'t>) -> Result<Value<'t>> {
    let (object, key) = (&object.plain(), &key.plain());
    object.check_defined()?;
    if let Some(value) = item(object, key) {
        return Ok(value);
    }
    match key {
        Value::Str(name) if is_unsafe(object, name) => Ok(unsafe_attribute(object, name)),
        Value::Str(name) => {
            Ok(python_attribute(object, name).unwrap_or_else(|| no_attribute(object, name)))
        }
        _ => {
            let key = super::repr::repr(key)?;
            Ok(Value::Undefined(format!("{} has no element {key}", object.object_name()).into()))
        }
    }
}

fn item<'t>(object: &Value<'t>, key: &Value<'t>) -> Option<Value<'t>> {
    let position = |len: usize| {
        let index = key.as_index()?;
        let index = if index < 0 { index + len as i128 } else { index };
        usize::try_from(index).ok().filter(|&i| i < len)
    };
    match object {
        Value::Dict(dict) => dict.get(key).ok().flatten().cloned(),
        Value::List(items) | Value::Tuple(items) => position(items.len()).map(|i| items[i].clone()),
        Value::View(view) if view.kind == ViewKind::Range => {
            position(view.items.len()).map(|i| view.items[i].clone())
        }
        Value::Str(s) => {
            let at = position(s.chars().count())?;
            s.chars().nth(at).map(|c| Value::str(c.to_string()))
        }
        _ => None,
    }
}

fn slice_bound(value: Option<&Value<'_>>) -> Result<Option<i128>> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(value) => match value.as_index() {
            Some(i) => Ok(Some(i)),
            None => fail!("slice indices must be integers or None or have an __index__ method"),
        },
    }
}

/// The positions that start:stop:step picks out of len items.
fn slice_positions(len: usize, start: Option<i128>, stop: Option<i128>, step: i128) -> Vec<usize> {
    let len = len as i128;
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let bound = |value: Option<i128>, default: i128| match value {
        None => default,
        Some(v) if v < 0 => (v.saturating_add(len)).max(low),
        Some(v) => v.min(high),
    };
    let (mut at, end) = if step > 0 {
        (bound(start, 0), bound(stop, len))
    } else {
        (bound(start, len - 1), bound(stop, -1))
    };
    let mut positions = Vec::new();
    while (step > 0 && at < end) || (step < 0 && at > end) {
        positions.push(at as usize);
        at = at.saturating_add(step);
    }
    positions
}

pub fn slice<'t>(
    object: &Value<'t>,
    start: Option<&Value<'t>>,
    stop: Option<&Value<'t>>,
    step: Option<&Value<'t>>,
) -> Result<Value<'t>> {
    let object = &object.plain();
    object.check_defined()?;
    let (start, stop) = (slice_bound(start)?, slice_bound(stop)?);
    let step = slice_bound(step)?.unwrap_or(1);
    if step == 0 {
        fail!("slice step cannot be zero");
    }
    let pick = |items: &[Value<'t>]| -> Vec<Value<'t>> {
        slice_positions(items.len(), start, stop, step)
            .into_iter()
            .map(|i| items[i].clone())
            .collect()
    };
    Ok(match object {
        Value::Str(s) => {
            let chars: Vec<char> = s.chars().collect();
            let picked = slice_positions(chars.len(), start, stop, step);
            Value::str(picked.into_iter().map(|i| chars[i]).collect::<String>())
        }
        Value::List(items) => Value::list(pick(items)),
        Value::Tuple(items) => Value::tuple(pick(items)),
        Value::View(view) if view.kind == ViewKind::Range => {
            Value::view(ViewKind::Range, pick(&view.items))
        }
        Value::Dict(_) => fail!("unhashable type: 'slice'"),
        other => fail!("'{}' object is not subscriptable", other.type_name()),
    })
}
