//! `'{}'.format(x)`, the newer of Python's two ways to format.

use super::args::Args;
use super::attributes;
use super::budget::{charge, charge_text, room, STEP};
use super::format_spec::{
    add, ascii, cut, float_body, general_form, group, integer_body, number_at, padded, signed, Spec,
};
use super::repr::{float_repr, repr, text_of};
use super::{fail, ops, Result, Value};

/// format(value, spec)
fn format_value(value: &Value<'_>, spec: &Spec) -> Result<String> {
    charge(STEP + 8 * spec.precision.unwrap_or(0))?;
    let kind = spec.kind;
    if let Value::Str(s) = value {
        if kind.is_some_and(|k| k != 's') {
            fail!("Unknown format code '{}' for object of type 'str'", kind.unwrap_or(' '));
        }
        return padded(cut(s, spec)?, spec, '<');
    }
    let integer = match value {
        Value::Bool(b) if kind.is_some() => Some(*b as i128),
        Value::Int(i) => Some(*i),
        _ => None,
    };
    match (integer, value, kind) {
        (Some(i), _, None | Some('d' | 'b' | 'o' | 'x' | 'X' | 'n')) => {
            let body = integer_body(i, kind.unwrap_or('d'), spec);
            padded(signed(i < 0, body, spec), spec, '>')
        }
        (Some(i), _, Some('c')) => {
            let c = u32::try_from(i).ok().and_then(char::from_u32);
            padded(c.map(String::from).unwrap_or_default(), spec, '<')
        }
        (_, Value::Float(f), None) => {
            let body = match spec.precision {
                None => group(&float_repr(f.abs()), spec.grouping),
                Some(precision) => {
                    let text = general_form(f.abs(), precision, false, false);
                    if text.contains(['.', 'e']) {
                        text
                    } else {
                        text + ".0"
                    }
                }
            };
            padded(signed(f.is_sign_negative(), body, spec), spec, '>')
        }
        (_, number, Some(k @ ('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%')))
            if number.as_f64().is_some() =>
        {
            let f = number.as_f64().unwrap_or(0.0);
            padded(
                signed(f.is_sign_negative() && !f.is_nan(), float_body(f, k, spec), spec),
                spec,
                '>',
            )
        }
        (_, other, None) => {
            let plain = spec.width == 0 && spec.align.is_none() && spec.precision.is_none();
            if !plain && !matches!(other, Value::Bool(_)) {
                other.check_defined()?;
                fail!("unsupported format string passed to {}.__format__", other.type_name());
            }
            padded(text_of(other)?.into_owned(), spec, '>')
        }
        (_, other, Some(k)) => {
            fail!("Unknown format code '{k}' for object of type '{}'", other.type_name())
        }
    }
}

/// The part of a replacement field behind the colon.
fn parse_spec(text: &str) -> Result<Spec> {
    charge_text(text.len())?;
    room(text.len().saturating_mul(4))?;
    let chars: Vec<char> = text.chars().collect();
    let mut spec = Spec::default();
    let mut at = 0;
    let is_align = |c: Option<&char>| matches!(c, Some('<' | '>' | '^' | '='));
    if is_align(chars.get(1)) {
        (spec.fill, spec.align, at) = (Some(chars[0]), Some(chars[1]), 2);
    } else if is_align(chars.first()) {
        (spec.align, at) = (Some(chars[0]), 1);
    }
    if matches!(chars.get(at), Some('+' | '-' | ' ')) {
        spec.sign = Some(chars[at]);
        at += 1;
    }
    if chars.get(at) == Some(&'#') {
        spec.alternate = true;
        at += 1;
    }
    if chars.get(at) == Some(&'0') {
        spec.fill = spec.fill.or(Some('0'));
        spec.align = spec.align.or(Some('='));
        at += 1;
    }
    spec.width = number_at(&chars, &mut at)?.unwrap_or(0);
    if matches!(chars.get(at), Some(',' | '_')) {
        spec.grouping = Some(chars[at]);
        at += 1;
    }
    if chars.get(at) == Some(&'.') {
        at += 1;
        spec.precision = number_at(&chars, &mut at)?;
        if spec.precision.is_none() {
            fail!("Format specifier missing precision");
        }
    }
    spec.kind = chars.get(at).copied();
    if at + 1 < chars.len() {
        fail!("Invalid format specifier '{text}'");
    }
    Ok(spec)
}

/// str.format
pub fn braces(pattern: &str, args: &Args<'_>) -> Result<String> {
    fill_braces(pattern, args, &mut 0, 0)
}

fn fill_braces(
    pattern: &str,
    args: &Args<'_>,
    automatic: &mut usize,
    depth: usize,
) -> Result<String> {
    if depth > 2 {
        fail!("Max string recursion exceeded");
    }
    // Fields are looked through for their end, and once more inside.
    charge_text(pattern.len().saturating_mul(4))?;
    let mut out = String::new();
    let mut rest = pattern;
    while let Some(at) = rest.find(['{', '}']) {
        add(&mut out, &rest[..at])?;
        let brace = &rest[at..at + 1];
        if rest[at + 1..].starts_with(brace) {
            out.push_str(brace);
            rest = &rest[at + 2..];
            continue;
        }
        if brace == "}" {
            fail!("Single '}}' encountered in format string");
        }
        let Some(end) = closing(&rest[at..]) else { fail!("expected '}}' before end of string") };
        let field = &rest[at + 1..at + end];
        rest = &rest[at + end + 1..];
        let (field, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, conversion) =
            field.split_once('!').map_or((field, None), |(name, c)| (name, Some(c)));
        let mut value = lookup(name, args, automatic)?;
        match conversion {
            None => {}
            Some("r") => value = Value::str(repr(&value)?),
            Some("a") => value = Value::str(ascii(&value)?),
            Some("s") => value = Value::str(text_of(&value)?),
            Some(other) => fail!("Unknown conversion specifier '{other}'"),
        }
        let spec = fill_braces(spec, args, automatic, depth + 1)?;
        add(&mut out, &format_value(&value, &parse_spec(&spec)?)?)?;
    }
    add(&mut out, rest)?;
    Ok(out)
}

fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn lookup<'t>(name: &str, args: &Args<'t>, automatic: &mut usize) -> Result<Value<'t>> {
    let head_end = name.find(['.', '[']).unwrap_or(name.len());
    let (head, mut path) = name.split_at(head_end);
    let index = if head.is_empty() {
        *automatic += 1;
        Some(*automatic - 1)
    } else {
        head.parse::<usize>().ok()
    };
    let found = match index {
        Some(index) => args.positional.get(index),
        None => args.named.iter().find(|(known, _)| known == head).map(|(_, value)| value),
    };
    let Some(value) = found else {
        match index {
            Some(_) => fail!("Replacement index {head} out of range for positional args tuple"),
            None => fail!("'{head}'"),
        }
    };
    let mut value = value.clone();
    while !path.is_empty() {
        if let Some(rest) = path.strip_prefix('[') {
            let Some((key, after)) = rest.split_once(']') else {
                fail!("Missing ']' in format string")
            };
            let key = key.parse().map_or_else(|_| Value::str(key), Value::Int);
            value = ops::get_item(&value, &key)?;
            path = after;
        } else {
            let rest = &path[1..];
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            value = attributes::get(&value, &rest[..end])?;
            path = &rest[end..];
        }
    }
    Ok(value)
}
