//! Filters that make text of text.

use super::args::{flag, integer, Args};
use super::repr::{is_space, to_str};
use super::str_methods;
use super::str_split::split_lines;
use super::{fail, Error, Result, Value};

/// Nothing when the filter is not one of these.
pub fn apply<'t>(name: &str, input: &Value<'t>, args: &Args<'t>) -> Option<Result<Value<'t>>> {
    let known = [
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
    ];
    if !known.contains(&name) {
        return None;
    }
    // These two work on the value itself; the others on its text.
    match (name, input) {
        ("indent" | "truncate", Value::Str(_)) => {}
        ("indent", other) => return Some(not_text(other)),
        ("truncate", other) => return Some(other.len().map(|_| other.clone())),
        _ => {}
    }
    Some(to_str(input).and_then(|text| apply_text(name, &text, input, args.clone())))
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
        "upper" => plain(args).map(|()| text.to_uppercase())?,
        "lower" => plain(args).map(|()| text.to_lowercase())?,
        "capitalize" => plain(args).map(|()| str_methods::capitalize(text))?,
        "title" => plain(args).map(|()| title(text))?,
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"], 2)?;
            let count = count.filter(|c| !matches!(c, Value::None));
            let (old, new) = (old.unwrap_or(Value::None), new.unwrap_or(Value::None));
            str_methods::replace(text, &to_str(&old)?, &to_str(&new)?, integer(count, -1, name)?)?
        }
        "indent" => indent(text, args)?,
        "truncate" => truncate(text, args)?,
        "center" => {
            let [width] = args.bind(name, ["width"], 0)?;
            str_methods::center(text, integer(width, 80, name)?, ' ')
        }
        "wordcount" => {
            plain(args)?;
            let words = text
                .split(|c: char| !(c.is_alphanumeric() || c == '_'))
                .filter(|word| !word.is_empty());
            return Ok(Value::Int(words.count() as i128));
        }
        "e" | "escape" | "forceescape" => plain(args).map(|()| escape(text))?,
        "striptags" => plain(args).map(|()| strip_tags(text))?,
        "urlencode" => {
            plain(args)?;
            url_encode(input, text)?
        }
        other => return Err(Error::failed(format!("No filter named '{other}'."))),
    }))
}

/// Words begin after white space, a hyphen or an opening bracket.
fn title(text: &str) -> String {
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
    out
}

fn indent(text: &str, args: Args<'_>) -> Result<String> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"], 0)?;
    let indention = match width {
        Some(Value::Str(s)) => s.to_string(),
        width => " ".repeat(integer(width, 4, "indent")?.clamp(0, 10_000) as usize),
    };
    let (first, blank) = (flag(first, false)?, flag(blank, false)?);
    let lines = split_lines(&format!("{text}\n"), false);
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
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
    let end = end.map_or(Ok("...".to_owned()), |end| to_str(&end))?;
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

pub fn escape(text: &str) -> String {
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
    out
}

fn strip_tags(text: &str) -> String {
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
    let words: Vec<&str> = out.split(is_space).filter(|word| !word.is_empty()).collect();
    let mut plain = words.join(" ");
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
    plain
}

fn quote(text: &str, safe: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        let c = byte as char;
        if byte.is_ascii_alphanumeric() || "_.-~".contains(c) || safe.contains(c) {
            out.push(c);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// A text, or the pairs of a query.
fn url_encode(input: &Value<'_>, text: &str) -> Result<String> {
    let pairs = match input {
        Value::Dict(dict) => dict.items(),
        Value::Str(_) => return Ok(quote(text, "/")),
        other => match other.iterate() {
            Ok(items) => items,
            Err(_) => return Ok(quote(text, "/")),
        },
    };
    let mut parts = Vec::new();
    for pair in pairs {
        let pair = pair.iterate()?;
        let [key, value] = &pair[..] else { fail!("urlencode: expected pairs") };
        let (key, value) = (quote(&to_str(key)?, ""), quote(&to_str(value)?, ""));
        parts.push(format!("{}={}", key.replace("%20", "+"), value.replace("%20", "+")));
    }
    Ok(parts.join("&"))
}
