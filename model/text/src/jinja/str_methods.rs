//! Methods of Python's str.

use std::rc::Rc;

use super::args::{flag, integer, text, Args};
use super::repr::{is_printable, is_space};
use super::str_split::{partition, split, split_lines};
use super::{fail, format, ops, Result, Value};

pub const NAMES: [&str; 45] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
    "encode",
];

pub fn strip(text: &str, chars: Option<&Value<'_>>, left: bool, right: bool) -> Result<String> {
    let set = match chars {
        None | Some(Value::None) => None,
        Some(Value::Str(s)) => Some(s.clone()),
        Some(other) => fail!("strip arg must be None or str, not {}", other.type_name()),
    };
    let strips = |c: char| set.as_ref().map_or_else(|| is_space(c), |set| set.contains(c));
    let mut rest = text;
    if left {
        rest = rest.trim_start_matches(strips);
    }
    if right {
        rest = rest.trim_end_matches(strips);
    }
    Ok(rest.to_owned())
}

pub fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars.as_str().to_lowercase().chars()).collect(),
        None => String::new(),
    }
}

pub fn replace(text: &str, old: &str, new: &str, count: i128) -> Result<String> {
    let matches = if old.is_empty() { text.len() + 1 } else { text.len() / old.len() };
    // Only where it could become too long is it worth counting.
    if ops::check_text(text.len().saturating_add(matches.saturating_mul(new.len()))).is_err() {
        let matches = text.matches(old).count();
        ops::check_text(text.len().saturating_add(matches.saturating_mul(new.len())))?;
    }
    Ok(match usize::try_from(count) {
        Ok(count) => text.replacen(old, new, count),
        Err(_) => text.replace(old, new),
    })
}

/// Odd padding goes to the left when the width is odd, as CPython has it.
pub fn center(text: &str, width: i128, fill: char) -> String {
    let length = text.chars().count();
    let width = width.clamp(0, 1 << 20) as usize;
    let padding = width.saturating_sub(length);
    let left = padding / 2 + (padding & width & 1);
    let fill = |n: usize| std::iter::repeat_n(fill, n).collect::<String>();
    fill(left) + text + &fill(padding - left)
}

/// The part of a text that start and end of find, count, startswith and the like pick out, and
/// where it begins.
fn window(
    text: &str,
    start: Option<Value<'_>>,
    end: Option<Value<'_>>,
) -> Result<Option<(usize, String)>> {
    let chars: Vec<char> = text.chars().collect();
    let len = chars.len() as i128;
    let bound = |value: Option<Value<'_>>, default: i128| -> Result<i128> {
        let at = integer(value.filter(|v| !matches!(v, Value::None)), default, "slice")?;
        Ok(if at < 0 { (at + len).max(0) } else { at })
    };
    let (start, end) = (bound(start, 0)?, bound(end, len)?.min(len));
    if start > end {
        return Ok(None);
    }
    Ok(Some((start as usize, chars[start as usize..end as usize].iter().collect())))
}

fn affix<'t>(text: &str, name: &str, args: Args<'t>) -> Result<Value<'t>> {
    let [affix, start, end] = args.bind(name, ["", "", ""], 1)?;
    let candidates = match affix.unwrap_or(Value::None) {
        Value::Tuple(items) => items.to_vec(),
        other => vec![other],
    };
    let Some((_, part)) = window(text, start, end)? else { return Ok(Value::Bool(false)) };
    for candidate in candidates {
        candidate.check_defined()?;
        let Value::Str(s) = &candidate else {
            fail!("{name} first arg must be str or a tuple of str, not {}", candidate.type_name());
        };
        if if name == "startswith" { part.starts_with(&**s) } else { part.ends_with(&**s) } {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn search<'t>(text: &str, name: &str, args: Args<'t>) -> Result<Value<'t>> {
    let [what, start, end] = args.bind(name, ["", "", ""], 1)?;
    let what = self::text(what, "", name)?;
    let picked = window(text, start, end)?;
    if name == "count" {
        return Ok(Value::Int(picked.map_or(0, |(_, part)| part.matches(&*what).count()) as i128));
    }
    let found = picked.and_then(|(offset, part)| {
        let at = if name.starts_with('r') { part.rfind(&*what) } else { part.find(&*what) };
        at.map(|at| offset + part[..at].chars().count())
    });
    match found {
        Some(at) => Ok(Value::Int(at as i128)),
        None if name.ends_with("index") => fail!("substring not found"),
        None => Ok(Value::Int(-1)),
    }
}

pub fn call<'t>(s: &Rc<str>, name: &str, args: Args<'t>) -> Result<Value<'t>> {
    let has = |test: fn(char) -> bool| Value::Bool(!s.is_empty() && s.chars().all(test));
    Ok(match name {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(name, [""], 0)?;
            if let Some(chars) = &chars {
                chars.check_defined()?;
            }
            Value::str(strip(s, chars.as_ref(), name != "rstrip", name != "lstrip")?)
        }
        "split" | "rsplit" => return split(s, args, name == "rsplit"),
        "partition" | "rpartition" => return partition(s, args, name == "rpartition"),
        "startswith" | "endswith" => return affix(s, name, args),
        "find" | "rfind" | "index" | "rindex" | "count" => return search(s, name, args),
        "format" => Value::str(format::braces(s, &args)?),
        "format_map" => {
            let [map] = args.bind(name, [""], 1)?;
            let Some(Value::Dict(dict)) = map else { fail!("format_map expects a dict") };
            let named = dict
                .iter()
                .filter_map(|(k, v)| Some((k.as_str()?.to_owned(), v.clone())))
                .collect();
            Value::str(format::braces(s, &Args { positional: Vec::new(), named })?)
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["", "", "count"], 2)?;
            let count = integer(count, -1, name)?;
            Value::str(replace(s, &text(old, "", name)?, &text(new, "", name)?, count)?)
        }
        "removeprefix" | "removesuffix" => {
            let [part] = args.bind(name, [""], 1)?;
            let part = text(part, "", name)?;
            let rest = if name == "removeprefix" {
                s.strip_prefix(&*part)
            } else {
                s.strip_suffix(&*part)
            };
            Value::str(rest.unwrap_or(s))
        }
        "join" => {
            let [items] = args.bind(name, [""], 1)?;
            let mut parts = Vec::new();
            let mut len = 0usize;
            for (i, item) in items.unwrap_or(Value::None).iterate()?.into_iter().enumerate() {
                match item {
                    Value::Str(part) => {
                        len += part.len() + s.len();
                        ops::check_text(len)?;
                        parts.push(part.to_string())
                    }
                    other => fail!(
                        "sequence item {i}: expected str instance, {} found",
                        other.type_name()
                    ),
                }
            }
            Value::str(parts.join(s))
        }
        "splitlines" => {
            let [keep] = args.bind(name, ["keepends"], 0)?;
            Value::list(split_lines(s, flag(keep, false)?).into_iter().map(Value::str).collect())
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            let [width, fill] = args.bind(name, ["", ""], 1)?;
            let width = integer(width, 0, name)?;
            let fill = text(fill, " ", name)?.chars().next().unwrap_or(' ');
            Value::str(pad(s, name, width, fill))
        }
        "expandtabs" => {
            let [size] = args.bind(name, ["tabsize"], 0)?;
            Value::str(expand_tabs(s, integer(size, 8, name)?.clamp(0, 1000) as usize))
        }
        "encode" => fail!("bytes are not supported in chat templates"),
        _ => {
            args.bind::<0>(name, [], 0)?;
            match name {
                "upper" => Value::str(s.to_uppercase()),
                "lower" => Value::str(s.to_lowercase()),
                "casefold" => Value::str(s.to_lowercase().replace('ß', "ss")),
                "capitalize" => Value::str(capitalize(s)),
                "title" => Value::str(title(s)),
                "swapcase" => Value::str(s.chars().map(swap_case).collect::<String>()),
                "isalnum" => has(char::is_alphanumeric),
                "isalpha" => has(char::is_alphabetic),
                "isascii" => Value::Bool(s.is_ascii()),
                "isdecimal" | "isdigit" => {
                    has(|c| c.is_numeric() && c.to_digit(36).is_none_or(|_| c.is_ascii_digit()))
                }
                "isnumeric" => has(char::is_numeric),
                "isspace" => has(is_space),
                "isprintable" => Value::Bool(s.chars().all(is_printable)),
                "isidentifier" => Value::Bool(is_identifier(s)),
                "islower" => Value::Bool(has_case(s) && !s.chars().any(char::is_uppercase)),
                "isupper" => Value::Bool(has_case(s) && !s.chars().any(char::is_lowercase)),
                "istitle" => Value::Bool(has_case(s) && title(s) == **s),
                other => fail!("'str' object has no attribute '{other}'"),
            }
        }
    })
}

fn pad(text: &str, name: &str, width: i128, fill: char) -> String {
    let missing = (width.clamp(0, 1 << 20) as usize).saturating_sub(text.chars().count());
    let padding = |c: char| std::iter::repeat_n(c, missing).collect::<String>();
    match name {
        "center" => center(text, width, fill),
        "ljust" => text.to_owned() + &padding(fill),
        "rjust" => padding(fill) + text,
        _ => match text.strip_prefix(['+', '-']) {
            Some(digits) => text[..1].to_owned() + &padding('0') + digits,
            None => padding('0') + text,
        },
    }
}

fn expand_tabs(text: &str, size: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' if size > 0 => {
                let spaces = size - column % size;
                out.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            '\t' => {}
            c => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    out
}

fn has_case(text: &str) -> bool {
    text.chars().any(|c| c.is_lowercase() || c.is_uppercase())
}

fn swap_case(c: char) -> String {
    if c.is_uppercase() {
        c.to_lowercase().collect()
    } else {
        c.to_uppercase().collect()
    }
}

/// str.title: a letter behind anything but a letter is a capital.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside = c.is_lowercase() || c.is_uppercase();
    }
    out
}

fn is_identifier(text: &str) -> bool {
    let mut chars = text.chars();
    let starts = chars.next().is_some_and(|c| c == '_' || c.is_alphabetic());
    starts && chars.all(|c| c == '_' || c.is_alphanumeric())
}
