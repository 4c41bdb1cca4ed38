//! str() and repr() as Python has them.

use std::fmt::Write;

use super::ops::check_text;
use super::value::ViewKind;
use super::{fail, Result, Value};

/// Nested deeper than any data of ours; protects the stack.
const MAX_DEPTH: usize = 200;

/// str(value), as output, `~` and the filters for text use it.
pub fn to_str(value: &Value<'_>) -> Result<String> {
    match value {
        Value::Str(s) | Value::Markup(s) => Ok(s.to_string()),
        Value::Undefined(_) => Ok(String::new()),
        other => repr(other),
    }
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
    check_text(out.len())?;
    match value {
        Value::Undefined(_) => out.push_str("Undefined"),
        Value::None => out.push_str("None"),
        Value::Bool(b) => out.push_str(if *b { "True" } else { "False" }),
        Value::Int(i) => _ = write!(out, "{i}"),
        Value::BigInt(digits) => out.push_str(digits),
        Value::Float(f) => out.push_str(&float_repr(*f)),
        Value::Str(s) => out.push_str(&str_repr(s)),
        Value::Markup(s) => _ = write!(out, "Markup({})", str_repr(s)),
        Value::List(items) => write_items(out, "[", items, "]", depth)?,
        Value::Tuple(items) if items.len() == 1 => write_items(out, "(", items, ",)", depth)?,
        Value::Tuple(items) => write_items(out, "(", items, ")", depth)?,
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
        Value::View(view) => match view.kind {
            ViewKind::Keys => write_items(out, "dict_keys([", &view.items, "])", depth)?,
            ViewKind::Values => write_items(out, "dict_values([", &view.items, "])", depth)?,
            ViewKind::Items => write_items(out, "dict_items([", &view.items, "])", depth)?,
            ViewKind::Range => out.push_str(&range_repr(&view.items)),
        },
        Value::Namespace(fields) => {
            let fields = Value::dict(fields.borrow().clone());
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

fn write_items(
    out: &mut String,
    open: &str,
    items: &[Value<'_>],
    close: &str,
    depth: usize,
) -> Result<()> {
    out.push_str(open);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write_repr(out, item, depth + 1)?;
    }
    out.push_str(close);
    Ok(())
}

fn range_repr(items: &[Value<'_>]) -> String {
    let at = |i: usize| items.get(i).and_then(Value::as_index).unwrap_or(0);
    let step = if items.len() > 1 { at(1) - at(0) } else { 1 };
    let stop = if items.is_empty() { 0 } else { at(items.len() - 1) + step };
    if step == 1 {
        format!("range({}, {stop})", at(0))
    } else {
        format!("range({}, {stop}, {step})", at(0))
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

fn str_repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len() + 2);
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
    out
}

/// The standard library escapes what Unicode calls unprintable, as Python does. It looks at a
/// character behind another one, because a combining character is only escaped in front.
pub fn is_printable(c: char) -> bool {
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
