//! Python's two ways to format: `'%s' % x` and `'{}'.format(x)`.

use std::fmt::Write;

use super::args::Args;
use super::attributes;
use super::budget::{
    charge, charge_text, room, room_for_items, room_for_more, room_for_text, STEP,
};
use super::repr::{float_repr, repr, text_of};
use super::value::View;
use super::{fail, ops, Result, Value};

/// The standard library formats no number with more digits than 65,535.
const MAX_WIDTH: usize = 60_000;

/// What a directive asks for, of either way.
#[derive(Default, Clone)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    grouping: Option<char>,
    width: usize,
    precision: Option<usize>,
    kind: Option<char>,
}

fn padded(body: String, spec: &Spec, default_align: char) -> Result<String> {
    room_for_text(body.len().saturating_add(spec.width.saturating_mul(8)))?;
    charge_text(body.len() + spec.width)?;
    let missing = spec.width.saturating_sub(body.chars().count());
    let fill = |n: usize| std::iter::repeat_n(spec.fill.unwrap_or(' '), n).collect::<String>();
    Ok(match spec.align.unwrap_or(default_align) {
        '<' => body + &fill(missing),
        '^' => fill(missing / 2) + &body + &fill(missing - missing / 2),
        '=' => {
            let digits = body.find(|c: char| c.is_ascii_alphanumeric()).unwrap_or(0);
            let (sign, rest) = body.split_at(digits);
            sign.to_owned() + &fill(missing) + rest
        }
        _ => fill(missing) + &body,
    })
}

/// The characters of a text that a precision leaves.
fn cut(text: &str, spec: &Spec) -> Result<String> {
    charge_text(text.len())?;
    room(text.len())?;
    Ok(text.chars().take(spec.precision.unwrap_or(usize::MAX)).collect())
}

/// ascii(): a repr without anything beyond ASCII.
fn ascii(value: &Value<'_>) -> Result<String> {
    let text = repr(value)?;
    charge_text(text.len().saturating_mul(4))?;
    room_for_text(text.len().saturating_mul(5))?;
    let mut out = String::new();
    for c in text.chars() {
        _ = match c as u32 {
            0..0x80 => write!(out, "{c}"),
            code @ 0x80..0x100 => write!(out, "\\x{code:02x}"),
            code @ 0x100..0x10000 => write!(out, "\\u{code:04x}"),
            code => write!(out, "\\U{code:08x}"),
        };
    }
    Ok(out)
}

fn group(digits: &str, separator: Option<char>) -> String {
    let Some(separator) = separator else { return digits.to_owned() };
    let (whole, rest) =
        digits.split_at(digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len()));
    let mut out = String::new();
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            out.push(separator);
        }
        out.push(c);
    }
    out + rest
}

fn signed(negative: bool, body: String, spec: &Spec) -> String {
    match (negative, spec.sign) {
        (true, _) => format!("-{body}"),
        (false, Some(sign @ ('+' | ' '))) => format!("{sign}{body}"),
        _ => body,
    }
}

fn exponent_form(value: f64, precision: usize, upper: bool) -> String {
    let text = format!("{value:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}{}{sign}{:02}", if upper { 'E' } else { 'e' }, exponent.abs())
}

fn general_form(value: f64, precision: usize, upper: bool, alternate: bool) -> String {
    let precision = precision.max(1);
    let exponent: i32 = if value == 0.0 {
        0
    } else {
        let text = format!("{value:.*e}", precision - 1);
        text.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0)
    };
    let trim = |text: String| {
        if alternate || !text.contains('.') {
            return text;
        }
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if exponent < -4 || exponent >= precision as i32 {
        let text = exponent_form(value, precision - 1, upper);
        let (mantissa, rest) = text.split_at(text.find(['e', 'E']).unwrap_or(text.len()));
        trim(mantissa.to_owned()) + rest
    } else {
        trim(format!("{value:.*}", (precision as i32 - 1 - exponent).max(0) as usize))
    }
}

fn float_body(value: f64, kind: char, spec: &Spec) -> String {
    let magnitude = value.abs();
    let upper = kind.is_ascii_uppercase();
    if !value.is_finite() {
        let text = if value.is_nan() { "nan" } else { "inf" };
        return if upper { text.to_uppercase() } else { text.to_owned() };
    }
    let precision = spec.precision.unwrap_or(6);
    group(
        &match kind.to_ascii_lowercase() {
            'e' => exponent_form(magnitude, precision, upper),
            'g' => general_form(magnitude, precision, upper, spec.alternate),
            '%' => format!("{:.precision$}%", magnitude * 100.0),
            _ => format!("{magnitude:.precision$}"),
        },
        spec.grouping,
    )
}

fn integer_body(value: i128, kind: char, spec: &Spec) -> String {
    let magnitude = value.unsigned_abs();
    let (prefix, digits) = match kind {
        'b' => ("0b", format!("{magnitude:b}")),
        'o' => ("0o", format!("{magnitude:o}")),
        'x' => ("0x", format!("{magnitude:x}")),
        'X' => ("0X", format!("{magnitude:X}")),
        _ => ("", magnitude.to_string()),
    };
    let digits = group(&digits, spec.grouping);
    if spec.alternate {
        format!("{prefix}{digits}")
    } else {
        digits
    }
}

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

fn number_at(chars: &[char], at: &mut usize) -> Result<Option<usize>> {
    let begin = *at;
    let mut value = 0usize;
    while let Some(digit) = chars.get(*at).and_then(|c| c.to_digit(10)) {
        value = value * 10 + digit as usize;
        if value > MAX_WIDTH {
            fail!("a width or precision of a format is larger than {MAX_WIDTH}");
        }
        *at += 1;
    }
    Ok((*at > begin).then_some(value))
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

fn add(out: &mut String, text: &str) -> Result<()> {
    room_for_more(out, text.len())?;
    out.push_str(text);
    Ok(())
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
