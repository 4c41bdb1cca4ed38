//! The filters: dispatch, and those for single values. See filters_seq.rs and filters_text.rs for
//! the others.

use super::args::{flag, integer, text, Args};
use super::budget::{charge_items, room_for_text};
use super::eval::Renderer;
use super::json::{dump, DumpOptions};
use super::ops::{self, Arithmetic};
use super::repr::{text_of, to_str};
use super::{attributes, fail, filters_seq, filters_text, format_percent, Result, Value};

const NAMES: [&str; 48] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
];

/// Jinja's filters that no chat template needs: files, colours of a page, chance.
const NOT_SUPPORTED: [&str; 6] =
    ["filesizeformat", "pprint", "random", "urlize", "wordwrap", "xmlattr"];

pub fn exists(name: &str) -> bool {
    NAMES.contains(&name)
}

/// These keep text that is safe already as it is, or make it so.
const KEEP_MARKUP: [&str; 9] =
    ["string", "trim", "upper", "lower", "capitalize", "title", "replace", "indent", "center"];

pub fn apply<'t>(
    renderer: &mut Renderer<'t>,
    name: &str,
    input: Value<'t>,
    args: Args<'t>,
) -> Result<Value<'t>> {
    // Filters call filters: map does.
    renderer.enter()?;
    charge_items(args.positional.len() + args.named.len())?;
    let result = apply_any(renderer, name, input, args);
    renderer.leave();
    result
}

fn apply_any<'t>(
    renderer: &mut Renderer<'t>,
    name: &str,
    input: Value<'t>,
    args: Args<'t>,
) -> Result<Value<'t>> {
    let makes_markup = matches!(name, "safe" | "escape" | "e" | "forceescape");
    if let (Value::Markup(_), "safe" | "escape" | "e") = (&input, name) {
        return args.bind::<0>(name, [], 0).map(|_| input);
    }
    let keeps_markup = matches!(input, Value::Markup(_)) && KEEP_MARKUP.contains(&name);
    match apply_plain(renderer, name, input.plain(), args.plain())? {
        Value::Str(text) if makes_markup || keeps_markup => Ok(Value::Markup(text)),
        other => Ok(other),
    }
}

fn apply_plain<'t>(
    renderer: &mut Renderer<'t>,
    name: &str,
    input: Value<'t>,
    args: Args<'t>,
) -> Result<Value<'t>> {
    if NOT_SUPPORTED.contains(&name) {
        fail!("filter '{name}' is not supported in chat templates");
    }
    if !exists(name) {
        fail!("No filter named '{name}'.");
    }
    if filters_text::is_one(name) {
        return filters_text::apply(name, &input, args);
    }
    match name {
        "default" | "d" => {
            let [value, boolean] = args.bind(name, ["default_value", "boolean"], 0)?;
            let replace = input.is_undefined() || (flag(boolean, false)? && !input.truthy()?);
            Ok(if replace { value.unwrap_or_else(|| Value::str("")) } else { input })
        }
        "tojson" => tojson(&input, args),
        "string" | "safe" => {
            args.bind::<0>(name, [], 0)?;
            if let Value::Str(_) = input {
                return Ok(input);
            }
            Ok(Value::str(to_str(&input)?))
        }
        "length" | "count" => {
            args.bind::<0>(name, [], 0)?;
            input.len().map(|n| Value::Int(n as i128))
        }
        "int" => int(&input, args),
        "float" => float(&input, args),
        "abs" => abs(&input, args),
        "round" => round(&input, args),
        "attr" => {
            let [attribute] = args.bind(name, ["name"], 1)?;
            let attribute = text(attribute, "", name)?;
            // Unlike the dot, this filter never looks for an item.
            match &input {
                Value::Dict(dict) if dict.get_name(&attribute).is_some() => Ok(Value::Undefined(
                    format!("'dict object' has no attribute '{attribute}'").into(),
                )),
                _ => attributes::get(&input, &attribute),
            }
        }
        "format" => {
            let pattern = text_of(&input)?;
            if !args.named.is_empty() && !args.positional.is_empty() {
                fail!("can't handle positional and keyword arguments at the same time");
            }
            let values = if args.named.is_empty() {
                Value::tuple(args.positional)?
            } else {
                let mut dict = super::dict::Dict::default();
                for (name, value) in args.named {
                    dict.set_name(&name, value)?;
                }
                Value::dict(dict)
            };
            Ok(Value::str(format_percent::percent(&pattern, &values)?))
        }
        _ => filters_seq::apply(renderer, name, input, args),
    }
}

fn tojson<'t>(input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    let [ensure_ascii, indent, separators, sort_keys] =
        args.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"], 0)?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Str(s)) => Some(s.to_string()),
        Some(n) => {
            let width = usize::try_from(integer(Some(n), 0, "tojson")?).unwrap_or(0);
            room_for_text(width)?;
            Some(" ".repeat(width))
        }
    };
    let (mut item, mut key) =
        (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    match separators {
        None | Some(Value::None) => {}
        Some(pair) => match &pair.iterate()?.take(3).collect::<Result<Vec<_>>>()?[..] {
            [Value::Str(a), Value::Str(b)] => (item, key) = (a.to_string(), b.to_string()),
            _ => fail!("tojson: expected two separators"),
        },
    }
    let options = DumpOptions {
        indent,
        item_separator: item,
        key_separator: key,
        sort_keys: flag(sort_keys, false)?,
        ensure_ascii: flag(ensure_ascii, false)?,
    };
    dump(input, &options).map(Value::str)
}

/// So many characters of a number are read: Python stops at 4,300 digits.
const MAX_DIGITS: usize = 4400;

/// A float as an integer, cut towards zero; nothing for what Python refuses too.
fn truncated(value: f64) -> Option<i128> {
    (value.is_finite() && value.abs() < 1e38).then_some(value as i128)
}

/// What int(text, base) and float(text) accept around the digits: spaces, a sign, single
/// underscores between digits.
fn clean_number(text: &str) -> Option<String> {
    // No number is as long, as far as Python reads them.
    if text.len() > MAX_DIGITS {
        return None;
    }
    let trimmed = text.trim_matches(super::repr::is_space);
    if trimmed.starts_with('_') || trimmed.ends_with('_') || trimmed.contains("__") {
        return None;
    }
    Some(trimmed.replace('_', ""))
}

fn parse_int(text: &str, base: u32) -> Option<i128> {
    let cleaned = clean_number(text)?;
    let (sign, digits) = match cleaned.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, cleaned.strip_prefix('+').unwrap_or(&cleaned)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefix = match base {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        _ => "",
    };
    let digits = lower.strip_prefix(prefix).unwrap_or(&lower);
    if digits.starts_with(['+', '-']) || !(2..=36).contains(&base) {
        return None;
    }
    i128::from_str_radix(digits, base).ok().map(|i| i * sign)
}

pub fn parse_float(text: &str) -> Option<f64> {
    let cleaned = clean_number(text)?.to_ascii_lowercase();
    match cleaned.trim_start_matches(['+', '-']) {
        "inf" | "infinity" | "nan" => cleaned.replace("infinity", "inf").parse().ok(),
        rest if rest.starts_with(|c: char| c.is_ascii_digit() || c == '.') => cleaned.parse().ok(),
        _ => None,
    }
}

fn int<'t>(input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    let [default, base] = args.bind("int", ["default", "base"], 0)?;
    let base = integer(base, 10, "int")?;
    input.check_defined()?;
    let default = default.unwrap_or(Value::Int(0));
    Ok(match input {
        Value::BigInt(_) => input.clone(),
        Value::Str(s) => match parse_int(s, u32::try_from(base).unwrap_or(0)) {
            Some(i) => Value::Int(i),
            None => parse_float(s).and_then(truncated).map_or(default, Value::Int),
        },
        Value::Float(f) => truncated(*f).map_or(default, Value::Int),
        other => other.as_index().map_or(default, Value::Int),
    })
}

fn float<'t>(input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    let [default] = args.bind("float", ["default"], 0)?;
    input.check_defined()?;
    let number = match input {
        Value::Str(s) => parse_float(s),
        other => other.as_f64(),
    };
    Ok(number.map_or_else(|| default.unwrap_or(Value::Float(0.0)), Value::Float))
}

fn abs<'t>(input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    args.bind::<0>("abs", [], 0)?;
    input.check_defined()?;
    match input {
        Value::Float(f) => Ok(Value::Float(f.abs())),
        other => match other.as_index() {
            Some(i) if i < 0 => ops::negate(other),
            Some(i) => Ok(Value::Int(i)),
            None => fail!("bad operand type for abs(): '{}'", other.type_name()),
        },
    }
}

/// To so many zeros at the end, ties to even.
fn rounded_integer(integer: i128, zeros: u32) -> i128 {
    let Some(unit) = 10i128.checked_pow(zeros) else { return 0 };
    let (whole, rest) = (integer.div_euclid(unit), integer.rem_euclid(unit));
    let is_up = rest > unit - rest || (rest == unit - rest && whole % 2 != 0);
    (whole + is_up as i128).saturating_mul(unit)
}

fn round<'t>(input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    let [precision, method] = args.bind("round", ["precision", "method"], 0)?;
    let precision = integer(precision, 0, "round")?.clamp(-300, 300) as i32;
    let method = text(method, "common", "round")?;
    input.check_defined()?;
    if &*method == "common" && precision >= 0 && input.as_index().is_some() {
        return Ok(Value::Int(input.as_index().unwrap_or(0)));
    }
    if let (Some(integer), "common") = (input.as_index(), &*method) {
        return Ok(Value::Int(rounded_integer(integer, precision.unsigned_abs())));
    }
    let Some(value) = input.as_f64() else {
        fail!("type {} doesn't define __round__ method", input.type_name())
    };
    let scale = 10f64.powi(precision);
    let rounded = match &*method {
        // Printing rounds the exact value, ties to even, as Python's round does.
        "common" if precision >= 0 => {
            format!("{value:.*}", precision as usize).parse().unwrap_or(value)
        }
        "common" => (value * scale).round_ties_even() / scale,
        "ceil" => (value * scale).ceil() / scale,
        "floor" => (value * scale).floor() / scale,
        _ => fail!("method must be common, ceil or floor"),
    };
    Ok(Value::Float(rounded))
}

/// The sum that the filter of that name builds, and `+` everywhere else.
pub fn add<'t>(a: &Value<'t>, b: &Value<'t>) -> Result<Value<'t>> {
    ops::arithmetic(Arithmetic::Add, a, b)
}
