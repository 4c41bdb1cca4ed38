//! Filters that make text of text.

use std::fmt::Write;

use super::args::{flag, integer, Args};
use super::budget::{charge, charge_text, room_for_more, room_for_text, STEP};
use super::repr::{is_space, text_of};
use super::str_methods;
use super::str_split::{ends_line, split_lines};
use super::value::View;
use super::walk::Walk;
use super::{fail, Error, Result, Value};

pub fn is_one(name: &str) -> bool {
    [
        "trim",
        "upper",
        "lower",
        "capitalize",
        "title",
        "replace",
        "indent",
        "truncate",
        "center",
        "wordcount",
        "e",
        "escape",
        "forceescape",
        "striptags",
        "urlencode",
    ]
    .contains(&name)
}

/// One of these filters.
pub fn apply<'t>(name: &str, input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    // These two work on the value itself; the others on its text.
    match (name, input) {
        ("indent" | "truncate", Value::Str(_)) => {}
        ("indent", other) => return not_text(other),
        ("truncate", other) => return other.len().map(|_| other.clone()),
        _ => {}
    }
    apply_text(name, &text_of(input)?, input, args)
}

fn not_text<'t>(value: &Value<'t>) -> Result<Value<'t>> {
    value.check_defined()?;
    fail!("unsupported operand type(s) for +=: '{}' and 'str'", value.type_name())
}

fn apply_text<'t>(name: &str, text: &str, input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    let plain = |args: Args<'t>| args.bind::<0>(name, [], 0).map(|_| ());
    Ok(Value::str(match name {
        "trim" => {
            let [chars] = args.bind(name, ["chars"], 0)?;
            str_methods::strip(text, chars.as_ref(), true, true)?
        }
        "upper" => plain(args).and_then(|()| str_methods::upper(text))?,
        "lower" => plain(args).and_then(|()| str_methods::lower(text))?,
        "capitalize" => plain(args).and_then(|()| str_methods::capitalize(text))?,
        "title" => plain(args).and_then(|()| title(text))?,
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"], 2)?;
            let count = count.filter(|c| !matches!(c, Value::None));
            let (old, new) = (old.unwrap_or(Value::None), new.unwrap_or(Value::None));
            str_methods::replace(text, &text_of(&old)?, &text_of(&new)?, integer(count, -1, name)?)?
        }
        "indent" => indent(text, args)?,
        "truncate" => truncate(text, args)?,
        "center" => {
            let [width] = args.bind(name, ["width"], 0)?;
            str_methods::center(text, integer(width, 80, name)?, ' ')?
        }
        "wordcount" => {
            plain(args)?;
            charge_text(text.len().saturating_mul(2))?;
            let words = text
                .split(|c: char| !(c.is_alphanumeric() || c == '_'))
                .filter(|word| !word.is_empty());
            return Ok(Value::Int(words.count() as i128));
        }
        "e" | "escape" | "forceescape" => plain(args).and_then(|()| escape(text))?,
        "striptags" => plain(args).and_then(|()| strip_tags(text))?,
        "urlencode" => {
            plain(args)?;
            url_encode(input, text)?
        }
        other => return Err(Error::failed(format!("No filter named '{other}'."))),
    }))
}

/// Words begin after white space, a hyphen or an opening bracket.
fn title(text: &str) -> Result<String> {
    str_methods::room_for_case(text)?;
    let mut out = String::with_capacity(text.len());
    let mut at_start = true;
    for c in text.chars() {
        if is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<') {
            at_start = true;
            out.push(c);
        } else if at_start {
            out.extend(c.to_uppercase());
            at_start = false;
        } else {
            out.extend(c.to_lowercase());
        }
    }
    Ok(out)
}

fn indent(text: &str, args: Args<'_>) -> Result<String> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"], 0)?;
    let indention = match width {
        Some(Value::Str(s)) => s,
        width => {
            let width = usize::try_from(integer(width, 4, "indent")?).unwrap_or(0);
            room_for_text(width)?;
            " ".repeat(width).into()
        }
    };
    let (first, blank) = (flag(first, false)?, flag(blank, false)?);
    charge_text(text.len().saturating_mul(2))?;
    // Lines are those of the text with a newline behind it, which makes one line end of a "\r".
    let last = (text.is_empty() || text.ends_with(|c| c != '\r' && ends_line(c))).then_some("");
    let mut out = String::new();
    for (i, line) in split_lines(text, false).chain(last).enumerate() {
        charge(STEP)?;
        room_for_more(&out, line.len() + indention.len() + 1)?;
        if i > 0 {
            out.push('\n');
        }
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    Ok(out)
}

fn truncate(text: &str, args: Args<'_>) -> Result<String> {
    let [length, kill_words, end, leeway] =
        args.bind("truncate", ["length", "killwords", "end", "leeway"], 0)?;
    let length = integer(length, 255, "truncate")?;
    let end = end.unwrap_or_else(|| Value::str("..."));
    let end = text_of(&end)?;
    charge_text(text.len() + end.len())?;
    room_for_text(text.len() + end.len())?;
    let leeway = integer(leeway.filter(|l| !matches!(l, Value::None)), 5, "truncate")?;
    let end_length = end.chars().count() as i128;
    if length < end_length {
        fail!("expected length >= {end_length}, got {length}");
    }
    if leeway < 0 {
        fail!("expected leeway >= 0, got {leeway}");
    }
    if text.chars().count() as i128 <= length.saturating_add(leeway) {
        return Ok(text.to_owned());
    }
    let cut: String = text.chars().take((length - end_length) as usize).collect();
    if flag(kill_words, false)? {
        return Ok(cut + &end);
    }
    Ok(cut.rsplit_once(' ').map_or(cut.as_str(), |(words, _)| words).to_owned() + &end)
}

pub fn escape(text: &str) -> Result<String> {
    charge_text(text.len().saturating_mul(2))?;
    let marks = text.bytes().filter(|b| b"&<>'\"".contains(b)).count();
    room_for_text(text.len() + marks * 4)?;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(out)
}

fn strip_tags(text: &str) -> Result<String> {
    charge_text(text.len().saturating_mul(8))?;
    room_for_text(text.len().saturating_mul(4))?;
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        out.push_str(&rest[..at]);
        let end = if rest[at..].starts_with("<!--") {
            rest[at..].find("-->").map(|end| end + 3)
        } else {
            rest[at..].find('>').map(|end| end + 1)
        };
        match end {
            Some(end) => rest = &rest[at + end..],
            None => {
                out.push_str(&rest[at..]);
                rest = "";
            }
        }
    }
    out.push_str(rest);
    let mut plain = String::new();
    for word in out.split(is_space).filter(|word| !word.is_empty()) {
        if !plain.is_empty() {
            plain.push(' ');
        }
        plain.push_str(word);
    }
    for (entity, c) in [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ] {
        plain = plain.replace(entity, c);
    }
    Ok(plain)
}

fn quote(text: &str, safe: &str) -> Result<String> {
    charge_text(text.len().saturating_mul(8))?;
    room_for_text(text.len().saturating_mul(3))?;
    let mut out = String::new();
    for byte in text.bytes() {
        let c = byte as char;
        if byte.is_ascii_alphanumeric() || "_.-~".contains(c) || safe.contains(c) {
            out.push(c);
        } else {
            _ = write!(out, "%{byte:02X}");
        }
    }
    Ok(out)
}

/// A text, or the pairs of a query.
fn url_encode(input: &Value<'_>, text: &str) -> Result<String> {
    let pairs = match input {
        Value::Dict(dict) => Value::view(View::Items(dict.clone())).iterate()?,
        Value::Str(_) => return quote(text, "/"),
        other => match Walk::over(other) {
            Some(items) => items,
            None => return quote(text, "/"),
        },
    };
    let mut out = String::new();
    for pair in pairs {
        charge(STEP)?;
        let pair = pair?.iterate()?.take(3).collect::<Result<Vec<_>>>()?;
        let [key, value] = &pair[..] else { fail!("urlencode: expected pairs") };
        let (key, value) = (quote(&text_of(key)?, "")?, quote(&text_of(value)?, "")?);
        room_for_more(&out, key.len() + value.len() + 2)?;
        let mark = if out.is_empty() { "" } else { "&" };
        _ = write!(out, "{mark}{}={}", key.replace("%20", "+"), value.replace("%20", "+"));
    }
    Ok(out)
}
