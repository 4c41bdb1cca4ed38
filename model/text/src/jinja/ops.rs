//! Operators, subscripts and slices.

use std::rc::Rc;

use super::attributes::{self, no_item};
use super::budget::{charge_text, room_for_items, room_for_text};
use super::filters_text::escape;
use super::value::{Range, View};
use super::{fail, format_percent, Result, Value};

const MAX_REPEAT: usize = 16 << 20;

fn unsupported<T>(op: &str, a: &Value<'_>, b: &Value<'_>) -> Result<T> {
    fail!("unsupported operand type(s) for {op}: '{}' and '{}'", a.type_name(), b.type_name())
}

fn repeat<'t>(value: &Value<'t>, times: i128) -> Result<Value<'t>> {
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    if value.len()?.saturating_mul(times) > MAX_REPEAT {
        fail!("repeated value is too large");
    }
    let copies = |items: &[Value<'t>]| -> Result<Vec<Value<'t>>> {
        room_for_items(items.len() * times)?;
        Ok(items.iter().cloned().cycle().take(items.len() * times).collect())
    };
    Ok(match value {
        Value::Str(s) => {
            room_for_text(s.len() * times)?;
            Value::str(s.repeat(times))
        }
        Value::Tuple(items) => Value::tuple(copies(items)?)?,
        Value::List(items) => Value::list(copies(items)?)?,
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

/// Two texts as one.
pub fn concatenated(a: &str, b: &str) -> Result<Rc<str>> {
    room_for_text(2 * (a.len() + b.len()))?;
    Ok([a, b].concat().into())
}

fn chained<'t>(a: &[Value<'t>], b: &[Value<'t>]) -> Result<Vec<Value<'t>>> {
    room_for_items(a.len() + b.len())?;
    Ok([a, b].concat())
}

pub fn arithmetic<'t>(op: Arithmetic, a: &Value<'t>, b: &Value<'t>) -> Result<Value<'t>> {
    use Arithmetic::*;
    match (op, a, b) {
        (Add, Value::Markup(x), Value::Markup(y)) => return Ok(Value::Markup(concatenated(x, y)?)),
        (Add, Value::Markup(x), Value::Str(y)) => {
            return Ok(Value::Markup(concatenated(x, &escape(y)?)?))
        }
        (Add, Value::Str(x), Value::Markup(y)) => {
            return Ok(Value::Markup(concatenated(&escape(x)?, y)?))
        }
        _ => {}
    }
    let (a, b) = (&a.plain(), &b.plain());
    // printf-style formatting takes its operand before anything asks whether it is defined.
    if let (Rem, Value::Str(pattern)) = (op, a) {
        return Ok(Value::str(format_percent::percent(pattern, b)?));
    }
    a.check_defined()?;
    b.check_defined()?;
    match (op, a, b) {
        (Add, Value::Str(x), Value::Str(y)) => return Ok(Value::Str(concatenated(x, y)?)),
        (Add, Value::List(x), Value::List(y)) => return Value::list(chained(x, y)?),
        (Add, Value::Tuple(x), Value::Tuple(y)) => return Value::tuple(chained(x, y)?),
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
            let r = x.wrapping_rem(y);
            x.checked_div(y).map(|q| if r != 0 && (r < 0) != (y < 0) { q - 1 } else { q })
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
            Some(i) => integers(Arithmetic::Sub, 0, i),
            None => fail!("bad operand type for unary -: '{}'", value.type_name()),
        },
    }
}

/// object[key]: the item, else the attribute of that name.
pub fn get_item<'t>(object: &Value<'t>, key: &Value<'t>) -> Result<Value<'t>> {
    let (object, key) = (&object.plain(), &key.plain());
    object.check_defined()?;
    if let Some(value) = item(object, key)? {
        return Ok(value);
    }
    match key {
        Value::Str(name) => attributes::named(object, name),
        _ => no_item(object, key),
    }
}

fn item<'t>(object: &Value<'t>, key: &Value<'t>) -> Result<Option<Value<'t>>> {
    let position = |len: usize| {
        let index = key.as_index()?;
        let index = if index < 0 { index.checked_add(len as i128)? } else { index };
        usize::try_from(index).ok().filter(|&i| i < len)
    };
    Ok(match object {
        Value::Dict(dict) if attributes::is_hashable(key) => dict.get(key)?.cloned(),
        Value::List(items) | Value::Tuple(items) => position(items.len()).map(|i| items[i].clone()),
        Value::View(view) => match &**view {
            View::Range(range) => position(range.len).map(|i| Value::Int(range.at(i))),
            _ => None,
        },
        Value::Str(s) if key.as_index().is_some() => {
            charge_text(s.len() / 4)?;
            let at = position(s.chars().count());
            at.and_then(|at| s.chars().nth(at))
                .map(|c| Value::str(c.encode_utf8(&mut [0; 4]) as &str))
        }
        _ => None,
    })
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

/// What start:stop:step picks out of len items: where it begins and ends, and how many there are.
struct Picked {
    begin: i128,
    end: i128,
    step: i128,
    count: usize,
}

impl Picked {
    fn of(len: usize, start: Option<i128>, stop: Option<i128>, step: i128) -> Picked {
        let len = len as i128;
        let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
        let bound = |value: Option<i128>, default: i128| match value {
            None => default,
            Some(v) if v < 0 => v.saturating_add(len).max(low),
            Some(v) => v.min(high),
        };
        let (begin, end) = if step > 0 {
            (bound(start, 0), bound(stop, len))
        } else {
            (bound(start, len - 1), bound(stop, -1))
        };
        let span = if step > 0 { end - begin } else { begin - end };
        let count = if span <= 0 { 0 } else { (span - 1) / step.saturating_abs() + 1 };
        Picked { begin, end, step, count: count as usize }
    }

    fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.count).map(|i| (self.begin + self.step * i as i128) as usize)
    }
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
    let picked = |len: usize| Picked::of(len, start, stop, step);
    let pick = |items: &[Value<'t>]| -> Result<Vec<Value<'t>>> {
        let picked = picked(items.len());
        room_for_items(picked.count)?;
        Ok(picked.positions().map(|at| items[at].clone()).collect())
    };
    Ok(match object {
        Value::Str(s) => {
            charge_text(s.len())?;
            let picked = picked(s.chars().count());
            if picked.count < 2 || step == 1 {
                let chars = s.chars().skip(picked.begin.max(0) as usize).take(picked.count);
                return Ok(Value::str(chars.collect::<String>()));
            }
            room_for_text(s.len().saturating_mul(5))?;
            let chars: Vec<char> = s.chars().collect();
            Value::str(picked.positions().map(|at| chars[at]).collect::<String>())
        }
        Value::List(items) => Value::list(pick(items)?)?,
        Value::Tuple(items) => Value::tuple(pick(items)?)?,
        Value::View(view) => match &**view {
            View::Range(range) => {
                let picked = picked(range.len);
                let number = |at: i128| range.start.saturating_add(range.step.saturating_mul(at));
                Value::view(View::Range(Range {
                    start: number(picked.begin),
                    stop: number(picked.end),
                    step: range.step.saturating_mul(step),
                    len: picked.count,
                }))
            }
            _ => fail!("'{}' object is not subscriptable", object.type_name()),
        },
        Value::Dict(_) => fail!("unhashable type: 'slice'"),
        other => fail!("'{}' object is not subscriptable", other.type_name()),
    })
}
