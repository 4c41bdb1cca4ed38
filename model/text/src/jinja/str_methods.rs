//! Methods of Python's str.

use std::rc::Rc;

use super::args::{flag, integer, text, Args};
use super::budget::{charge, charge_text, room, room_for_more, room_for_text, ELEMENT, STEP};
use super::repr::{is_printable, is_space};
use super::str_split::{list_of, partition, split, split_lines};
use super::unicode::{casefold, is_decimal, is_digit, to_title};
use super::{fail, format, translate, Result, Value};

pub const NAMES: [&str; 47] = [
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
    "maketrans",
    "translate",
];

pub fn strip(text: &str, chars: Option<&Value<'_>>, left: bool, right: bool) -> Result<String> {
    let set = match chars {
        None | Some(Value::None) => None,
        Some(Value::Str(s)) => Some(s.clone()),
        Some(other) => fail!("strip arg must be None or str, not {}", other.type_name()),
    };
    let mut chars: Vec<char> = Vec::new();
    if let Some(set) = &set {
        charge_text(set.len().saturating_mul(16))?;
        room(set.len().saturating_mul(4))?;
        chars.extend(set.chars());
        chars.sort_unstable();
    }
    charge_text(text.len().saturating_mul(2))?;
    room(text.len())?;
    let strips = |c: char| match &set {
        None => is_space(c),
        Some(_) => chars.binary_search(&c).is_ok(),
    };
    let mut rest = text;
    if left {
        rest = rest.trim_start_matches(strips);
    }
    if right {
        rest = rest.trim_end_matches(strips);
    }
    Ok(rest.to_owned())
}

/// Before a text is made again with other letters: some become three.
pub fn room_for_case(text: &str) -> Result<()> {
    charge_text(text.len().saturating_mul(4))?;
    room_for_text(text.len().saturating_mul(3))
}

pub fn upper(text: &str) -> Result<String> {
    room_for_case(text)?;
    Ok(text.to_uppercase())
}

pub fn lower(text: &str) -> Result<String> {
    room_for_case(text)?;
    Ok(text.to_lowercase())
}

pub fn capitalize(text: &str) -> Result<String> {
    room_for_case(text)?;
    let mut chars = text.chars();
    Ok(match chars.next() {
        Some(first) => to_title(first).chain(chars.as_str().to_lowercase().chars()).collect(),
        None => String::new(),
    })
}

pub fn replace(text: &str, old: &str, new: &str, count: i128) -> Result<String> {
    charge_text(text.len().saturating_mul(2))?;
    let at_most = usize::try_from(count).unwrap_or(usize::MAX);
    let matches = text.matches(old).count().min(at_most);
    charge(matches.saturating_mul(ELEMENT))?;
    let length =
        (text.len() - matches * old.len()).saturating_add(matches.saturating_mul(new.len()));
    room_for_text(length)?;
    Ok(text.replacen(old, new, at_most))
}

/// Room for a text that is filled up to a width.
fn room_for_width(text: &str, width: i128, fill: char) -> Result<usize> {
    charge_text(text.len())?;
    let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
    room_for_text(text.len().saturating_add(width.saturating_mul(fill.len_utf8())))?;
    charge_text(width)?;
    Ok(width)
}

/// Odd padding goes to the left when the width is odd, as CPython has it.
pub fn center(text: &str, width: i128, fill: char) -> Result<String> {
    let width = room_for_width(text, width, fill)?;
    let padding = width.saturating_sub(text.chars().count());
    let left = padding / 2 + (padding & width & 1);
    let fill = |n: usize| std::iter::repeat_n(fill, n).collect::<String>();
    Ok(fill(left) + text + &fill(padding - left))
}

/// The part of a text that start and end of find, count, startswith and the like pick out, and
/// where it begins.
fn window<'s>(
    text: &'s str,
    start: Option<Value<'_>>,
    end: Option<Value<'_>>,
) -> Result<Option<(usize, &'s str)>> {
    let is_given = |v: &Value<'_>| !matches!(v, Value::None);
    let (start, end) = (start.filter(is_given), end.filter(is_given));
    if start.is_none() && end.is_none() {
        return Ok(Some((0, text)));
    }
    charge_text(text.len())?;
    let len = text.chars().count() as i128;
    let bound = |value: Option<Value<'_>>, default: i128| -> Result<i128> {
        let at = integer(value, default, "slice")?;
        Ok(if at < 0 { at.saturating_add(len).max(0) } else { at })
    };
    let (start, end) = (bound(start, 0)?, bound(end, len)?.min(len));
    if start > end {
        return Ok(None);
    }
    let byte_of =
        |index: i128| text.char_indices().nth(index as usize).map_or(text.len(), |(at, _)| at);
    Ok(Some((start as usize, &text[byte_of(start)..byte_of(end)])))
}

fn affix<'t>(text: &str, name: &str, args: Args<'t>) -> Result<Value<'t>> {
    let [affix, start, end] = args.bind(name, ["", "", ""], 1)?;
    let affix = affix.unwrap_or(Value::None);
    let candidates = match &affix {
        Value::Tuple(items) => &items[..],
        other => std::slice::from_ref(other),
    };
    let Some((_, part)) = window(text, start, end)? else { return Ok(Value::Bool(false)) };
    for candidate in candidates {
        charge(ELEMENT)?;
        candidate.check_defined()?;
        let Value::Str(s) = candidate else {
            fail!("{name} first arg must be str or a tuple of str, not {}", candidate.type_name());
        };
        charge_text(s.len().min(part.len()) / 16)?;
        if if name == "startswith" { part.starts_with(&**s) } else { part.ends_with(&**s) } {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn search<'t>(text: &str, name: &str, args: Args<'t>) -> Result<Value<'t>> {
    let [what, start, end] = args.bind(name, ["", "", ""], 1)?;
    let what = self::text(what, "", name)?;
    charge_text(text.len().saturating_add(what.len()))?;
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
    charge(STEP)?;
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
            let mut named = Vec::new();
            for (key, value) in dict.iter() {
                charge(STEP)?;
                if let Value::Str(name) = key {
                    room(name.len())?;
                    named.push((name.to_string(), value.clone()));
                }
            }
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
            room(s.len())?;
            let rest = if name == "removeprefix" {
                s.strip_prefix(&*part)
            } else {
                s.strip_suffix(&*part)
            };
            Value::str(rest.unwrap_or(s))
        }
        "join" => {
            let [items] = args.bind(name, [""], 1)?;
            let mut out = String::new();
            for (i, item) in items.unwrap_or(Value::None).iterate()?.enumerate() {
                match item?.plain() {
                    Value::Str(part) => {
                        room_for_more(&out, part.len() + s.len())?;
                        if i > 0 {
                            out.push_str(s);
                        }
                        out.push_str(&part);
                    }
                    other => fail!(
                        "sequence item {i}: expected str instance, {} found",
                        other.type_name()
                    ),
                }
            }
            room(out.len())?;
            Value::str(out)
        }
        "splitlines" => {
            let [keep] = args.bind(name, ["keepends"], 0)?;
            charge_text(s.len())?;
            Value::list(list_of(split_lines(s, flag(keep, false)?))?)?
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            let [width, fill] = args.bind(name, ["", ""], 1)?;
            let width = integer(width, 0, name)?;
            let fill = text(fill, " ", name)?;
            let mut chars = fill.chars();
            match (chars.next(), chars.next()) {
                (Some(fill), None) => Value::str(pad(s, name, width, fill)?),
                _ => fail!("The fill character must be exactly one character long"),
            }
        }
        "expandtabs" => {
            let [size] = args.bind(name, ["tabsize"], 0)?;
            Value::str(expand_tabs(s, integer(size, 8, name)?)?)
        }
        "encode" => fail!("bytes are not supported in chat templates"),
        "maketrans" => translate::table(args)?,
        "translate" => translate::apply(s, args)?,
        _ => {
            args.bind::<0>(name, [], 0)?;
            charge_text(s.len().saturating_mul(2))?;
            match name {
                "upper" => Value::str(upper(s)?),
                "lower" => Value::str(lower(s)?),
                "casefold" => {
                    room_for_case(s)?;
                    Value::str(s.chars().flat_map(casefold).collect::<String>())
                }
                "capitalize" => Value::str(capitalize(s)?),
                "title" => Value::str(title(s)?),
                "swapcase" => {
                    room_for_case(s)?;
                    Value::str(s.chars().map(swap_case).collect::<String>())
                }
                "isalnum" => has(char::is_alphanumeric),
                "isalpha" => has(char::is_alphabetic),
                "isascii" => Value::Bool(s.is_ascii()),
                "isdecimal" => has(is_decimal),
                "isdigit" => has(is_digit),
                "isnumeric" => has(char::is_numeric),
                "isspace" => has(is_space),
                "isprintable" => Value::Bool(s.chars().all(is_printable)),
                "isidentifier" => Value::Bool(is_identifier(s)),
                "islower" => Value::Bool(has_case(s) && !s.chars().any(char::is_uppercase)),
                "isupper" => Value::Bool(has_case(s) && !s.chars().any(char::is_lowercase)),
                "istitle" => Value::Bool(has_case(s) && title(s)? == **s),
                other => fail!("'str' object has no attribute '{other}'"),
            }
        }
    })
}

fn pad(text: &str, name: &str, width: i128, fill: char) -> Result<String> {
    let missing = room_for_width(text, width, fill)?.saturating_sub(text.chars().count());
    let padding = |c: char| std::iter::repeat_n(c, missing).collect::<String>();
    Ok(match name {
        "center" => return center(text, width, fill),
        "ljust" => text.to_owned() + &padding(fill),
        "rjust" => padding(fill) + text,
        _ => match text.strip_prefix(['+', '-']) {
            Some(digits) => text[..1].to_owned() + &padding('0') + digits,
            None => padding('0') + text,
        },
    })
}

fn expand_tabs(text: &str, size: i128) -> Result<String> {
    let size = usize::try_from(size.max(0)).unwrap_or(usize::MAX);
    charge_text(text.len().saturating_mul(2))?;
    let tabs = text.bytes().filter(|b| *b == b'\t').count();
    room_for_text(text.len().saturating_add(tabs.saturating_mul(size)))?;
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
    Ok(out)
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
fn title(text: &str) -> Result<String> {
    room_for_case(text)?;
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(to_title(c));
        }
        inside = c.is_lowercase() || c.is_uppercase();
    }
    Ok(out)
}

fn is_identifier(text: &str) -> bool {
    let mut chars = text.chars();
    let starts = chars.next().is_some_and(|c| c == '_' || c.is_alphabetic());
    starts && chars.all(|c| c == '_' || c.is_alphanumeric())
}
