//! str() and repr() as Python has them.

use std::borrow::Cow;
use std::fmt::Write;

use super::budget::{charge, charge_text, end, room, MAX_TEXT, NEW_ELEMENT, TOO_LONG};
use super::value::{Range, View};
use super::{fail, Result, Value};

/// Nested deeper than any data of ours; protects the stack.
const MAX_DEPTH: usize = 200;

/// str(value), as output, `~` and the filters for text use it.
pub fn text_of<'v>(value: &'v Value<'_>) -> Result<Cow<'v, str>> {
    match value {
        Value::Str(s) | Value::Markup(s) => Ok(Cow::Borrowed(s)),
        Value::Undefined(_) => Ok(Cow::Borrowed("")),
        other => Ok(Cow::Owned(repr(other)?)),
    }
}

pub fn to_str(value: &Value<'_>) -> Result<String> {
    if let Some(text) = value.as_str() {
        room(text.len())?;
    }
    Ok(text_of(value)?.into_owned())
}

pub fn repr(value: &Value<'_>) -> Result<String> {
    let mut out = String::new();
    write_repr(&mut out, value, 0)?;
    Ok(out)
}

fn write_repr(out: &mut String, value: &Value<'_>, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        fail!("maximum recursion depth exceeded while getting the repr of an object");
    }
    check_length(out)?;
    match value {
        Value::Undefined(_) => out.push_str("Undefined"),
        Value::None => out.push_str("None"),
        Value::Bool(b) => out.push_str(if *b { "True" } else { "False" }),
        Value::Int(i) => _ = write!(out, "{i}"),
        Value::BigInt(digits) => {
            room(digits.len())?;
            out.push_str(digits);
        }
        Value::Float(f) => out.push_str(&float_repr(*f)),
        Value::Str(s) => write_str(out, s)?,
        Value::Markup(s) => {
            out.push_str("Markup(");
            write_str(out, s)?;
            out.push(')');
        }
        Value::List(items) => write_all(out, "[", items.iter(), "]", depth)?,
        Value::Tuple(items) => {
            let close = if items.len() == 1 { ",)" } else { ")" };
            write_all(out, "(", items.iter(), close, depth)?
        }
        Value::Dict(dict) => {
            out.push('{');
            for (i, (key, item)) in dict.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_repr(out, key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, item, depth + 1)?;
            }
            out.push('}');
        }
        Value::View(view) => match &**view {
            View::Keys(dict) => {
                write_all(out, "dict_keys([", dict.iter().map(|(key, _)| key), "])", depth)?
            }
            View::Values(dict) => {
                write_all(out, "dict_values([", dict.iter().map(|(_, value)| value), "])", depth)?
            }
            View::Items(dict) => {
                out.push_str("dict_items([");
                for (i, (key, item)) in dict.iter().enumerate() {
                    out.push_str(if i > 0 { ", (" } else { "(" });
                    write_repr(out, key, depth + 2)?;
                    out.push_str(", ");
                    write_repr(out, item, depth + 2)?;
                    out.push(')');
                }
                out.push_str("])");
            }
            View::Range(range) => out.push_str(&range_repr(range)),
        },
        Value::Namespace(fields) => {
            let fields = Value::dict(fields.borrow().copy()?);
            out.push_str("<Namespace ");
            write_repr(out, &fields, depth + 1)?;
            out.push('>');
        }
        Value::Macro(m) => _ = write!(out, "<Macro '{}'>", m.name()),
        Value::Loop(state) => {
            _ = write!(out, "<LoopContext {}/{}>", state.at.get() + 1, state.items.len())
        }
        other => _ = write!(out, "<{} object>", other.type_name()),
    }
    Ok(())
}

/// Each value that is written is charged here.
fn check_length(out: &str) -> Result<()> {
    charge(NEW_ELEMENT)?;
    if out.len() > MAX_TEXT {
        return end(TOO_LONG);
    }
    Ok(())
}

fn write_all<'v, 't: 'v>(
    out: &mut String,
    open: &str,
    items: impl Iterator<Item = &'v Value<'t>>,
    close: &str,
    depth: usize,
) -> Result<()> {
    out.push_str(open);
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write_repr(out, item, depth + 1)?;
    }
    out.push_str(close);
    Ok(())
}

fn range_repr(range: &Range) -> String {
    if range.step == 1 {
        format!("range({}, {})", range.start, range.stop)
    } else {
        format!("range({}, {}, {})", range.start, range.stop, range.step)
    }
}

/// The shortest digits that read back as the same number, with an exponent from 1e16 and below
/// 1e-4.
pub fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    }
}

fn write_str(out: &mut String, text: &str) -> Result<()> {
    charge_text(text.len().saturating_mul(4))?;
    // Two characters for a quote; ten for one that is not printable, which takes two bytes at least
    // but for ASCII.
    let plain = text.bytes().filter(|b| (b' '..=b'~').contains(b)).count();
    room(2 * plain + 5 * (text.len() - plain))?;
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c if (c as u32) < 0x100 => _ = write!(out, "\\x{:02x}", c as u32),
            c if (c as u32) < 0x10000 => _ = write!(out, "\\u{:04x}", c as u32),
            c => _ = write!(out, "\\U{:08x}", c as u32),
        }
    }
    out.push(quote);
    Ok(())
}

/// The standard library escapes what Unicode calls unprintable, as Python does. It looks at a
/// character behind another one, because a combining character is only escaped in front.
pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    if matches!(c, '\'' | '"' | '\\') {
        return true;
    }
    let mut buffer = String::from("x");
    buffer.push(c);
    !buffer.escape_debug().skip(1).any(|e| e == '\\')
}

/// What str.strip(), split() and isspace() take for white space.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}
