//! What Python's two ways to format share: a field's form, and how numbers and texts are written in it.

use std::fmt::Write;

use super::budget::{charge_text, room, room_for_more, room_for_text};
use super::repr::repr;
use super::{fail, Result, Value};

/// The standard library formats no number with more digits than 65,535.
const MAX_WIDTH: usize = 60_000;

/// What a directive asks for, of either way.
#[derive(Default, Clone)]
pub struct Spec {
    pub fill: Option<char>,
    pub align: Option<char>,
    pub sign: Option<char>,
    pub alternate: bool,
    pub grouping: Option<char>,
    pub width: usize,
    pub precision: Option<usize>,
    pub kind: Option<char>,
}

pub fn padded(body: String, spec: &Spec, default_align: char) -> Result<String> {
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
pub fn cut(text: &str, spec: &Spec) -> Result<String> {
    charge_text(text.len())?;
    room(text.len())?;
    Ok(text.chars().take(spec.precision.unwrap_or(usize::MAX)).collect())
}

/// ascii(): a repr without anything beyond ASCII.
pub fn ascii(value: &Value<'_>) -> Result<String> {
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

pub fn group(digits: &str, separator: Option<char>) -> String {
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

pub fn signed(negative: bool, body: String, spec: &Spec) -> String {
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

pub fn general_form(value: f64, precision: usize, upper: bool, alternate: bool) -> String {
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

pub fn float_body(value: f64, kind: char, spec: &Spec) -> String {
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

pub fn integer_body(value: i128, kind: char, spec: &Spec) -> String {
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

pub fn number_at(chars: &[char], at: &mut usize) -> Result<Option<usize>> {
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

pub fn add(out: &mut String, text: &str) -> Result<()> {
    room_for_more(out, text.len())?;
    out.push_str(text);
    Ok(())
}
