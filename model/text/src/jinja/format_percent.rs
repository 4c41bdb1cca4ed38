//! `'%s' % x`, the older of Python's two ways to format.

use super::budget::{charge, charge_text, room, room_for_items, STEP};
use super::format_spec::{
    add, ascii, cut, float_body, integer_body, number_at, padded, signed, Spec,
};
use super::repr::{repr, text_of};
use super::value::View;
use super::{fail, Result, Value};

/// pattern % values
pub fn percent(pattern: &str, values: &Value<'_>) -> Result<String> {
    let arguments: Vec<Value<'_>> = match values {
        Value::Tuple(items) => {
            room_for_items(items.len())?;
            items.to_vec()
        }
        other => vec![other.clone()],
    };
    charge_text(pattern.len().saturating_mul(4))?;
    room(pattern.len().saturating_mul(5))?;
    let mut next = arguments.into_iter();
    let mut used_name = false;
    let chars: Vec<char> = pattern.chars().collect();
    let (mut out, mut at) = (String::new(), 0);
    while at < chars.len() {
        if chars[at] != '%' {
            out.push(chars[at]);
            at += 1;
            continue;
        }
        at += 1;
        if chars.get(at) == Some(&'%') {
            out.push('%');
            at += 1;
            continue;
        }
        let mut named = None;
        if chars.get(at) == Some(&'(') {
            let Some(length) = chars[at..].iter().position(|c| *c == ')') else {
                fail!("incomplete format key")
            };
            let name: String = chars[at + 1..at + length].iter().collect();
            let Value::Dict(dict) = values else { fail!("format requires a mapping") };
            let Some(value) = dict.get_name(&name) else { fail!("'{name}'") };
            (named, used_name) = (Some(value.clone()), true);
            at += length + 1;
        }
        let mut spec = Spec { align: Some('>'), ..Spec::default() };
        while let Some(flag @ ('-' | '+' | ' ' | '#' | '0')) = chars.get(at) {
            match flag {
                '-' => spec.align = Some('<'),
                '0' if spec.align != Some('<') => (spec.fill, spec.align) = (Some('0'), Some('=')),
                '0' => {}
                '#' => spec.alternate = true,
                sign => spec.sign = Some(*sign),
            }
            at += 1;
        }
        spec.width = number_at(&chars, &mut at)?.unwrap_or(0);
        if chars.get(at) == Some(&'.') {
            at += 1;
            spec.precision = Some(number_at(&chars, &mut at)?.unwrap_or(0));
        }
        let Some(&kind) = chars.get(at) else { fail!("incomplete format") };
        at += 1;
        let Some(value) = named.or_else(|| next.next()) else {
            fail!("not enough arguments for format string")
        };
        add(&mut out, &percent_value(&value, kind, spec)?)?;
    }
    if next.next().is_some() && !used_name && !has_items(values) {
        fail!("not all arguments converted during string formatting");
    }
    Ok(out)
}

/// Whether Python takes it for something that names could be looked up in.
fn has_items(values: &Value<'_>) -> bool {
    match values {
        Value::Dict(_) | Value::List(_) | Value::Undefined(_) => true,
        Value::View(view) => matches!(**view, View::Range(_)),
        _ => false,
    }
}

fn percent_value(value: &Value<'_>, kind: char, mut spec: Spec) -> Result<String> {
    charge(STEP + 8 * spec.precision.unwrap_or(0))?;
    match kind {
        's' | 'r' | 'a' => {
            let text = match kind {
                's' => text_of(value)?,
                'r' => repr(value)?.into(),
                _ => ascii(value)?.into(),
            };
            if spec.align == Some('=') {
                (spec.align, spec.fill) = (Some('>'), None);
            }
            padded(cut(&text, &spec)?, &spec, '>')
        }
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            value.check_defined()?;
            let integer = match value {
                Value::Float(f) if f.is_finite() && "diu".contains(kind) => Some(*f as i128),
                other => other.as_index(),
            };
            let Some(integer) = integer else {
                fail!("%{kind} format: a real number is required, not {}", value.type_name());
            };
            let body = integer_body(integer, kind, &spec);
            padded(signed(integer < 0, body, &spec), &spec, '>')
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            value.check_defined()?;
            let Some(f) = value.as_f64() else {
                fail!("must be real number, not {}", value.type_name())
            };
            padded(signed(f.is_sign_negative(), float_body(f, kind, &spec), &spec), &spec, '>')
        }
        'c' => match value {
            Value::Str(s) if s.chars().nth(1).is_none() && !s.is_empty() => {
                padded(s.to_string(), &spec, '>')
            }
            other => {
                match other.as_index().and_then(|i| u32::try_from(i).ok()).and_then(char::from_u32)
                {
                    Some(c) => padded(c.to_string(), &spec, '>'),
                    None => fail!("%c requires int or char"),
                }
            }
        },
        other => fail!("unsupported format character '{other}'"),
    }
}
