//! The functions that every template finds: Jinja's own and those of transformers.

use std::cell::RefCell;
use std::rc::Rc;

use super::args::{integer, text, Args};
use super::dict::Dict;
use super::eval::Renderer;
use super::repr::to_str;
use super::value::ViewKind;
use super::{fail, strftime, Error, Result, Value};

const NAMES: [&str; 7] =
    ["range", "dict", "namespace", "cycler", "joiner", "raise_exception", "strftime_now"];

/// As many numbers as the sandbox lets a range have.
const MAX_RANGE: i128 = 100_000;

pub fn global(name: &str) -> Option<&'static str> {
    NAMES.into_iter().find(|known| *known == name)
}

pub fn call<'t>(renderer: &mut Renderer<'t>, name: &str, args: Args<'t>) -> Result<Value<'t>> {
    match name {
        "range" => range(args),
        "dict" => Ok(Value::dict(dict(args)?)),
        "namespace" => Ok(Value::Namespace(Rc::new(RefCell::new(dict(args)?)))),
        "cycler" if args.positional.is_empty() => fail!("at least one item has to be provided"),
        "cycler" => Ok(Value::Cycler(Rc::new((args.positional, RefCell::new(0))))),
        "joiner" => {
            let [separator] = args.bind("joiner", ["sep"], 0)?;
            Ok(Value::Joiner(Rc::new((
                text(separator, ", ", "joiner")?.into(),
                RefCell::new(false),
            ))))
        }
        "raise_exception" => {
            let [message] = args.bind("raise_exception", ["message"], 1)?;
            Err(Error::Raised(to_str(&message.unwrap_or(Value::None))?))
        }
        "strftime_now" => {
            let [pattern] = args.bind("strftime_now", ["format"], 1)?;
            Ok(Value::str(strftime::format(&text(pattern, "", "strftime_now")?, renderer.now)))
        }
        other => fail!("'{other}' is not callable"),
    }
}

fn range<'t>(args: Args<'t>) -> Result<Value<'t>> {
    let given = args.positional.len();
    let [first, second, step] = args.bind("range", ["", "", ""], 1)?;
    let first = integer(first, 0, "range")?;
    let (start, stop) = if given < 2 { (0, first) } else { (first, integer(second, 0, "range")?) };
    let step = integer(step, 1, "range")?;
    if step == 0 {
        fail!("range() arg 3 must not be zero");
    }
    let span = if step > 0 { stop.saturating_sub(start) } else { start.saturating_sub(stop) };
    let count = if span <= 0 { 0 } else { (span - 1) / step.saturating_abs() + 1 };
    if count > MAX_RANGE {
        fail!("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({MAX_RANGE}).");
    }
    Ok(Value::view(ViewKind::Range, (0..count).map(|i| Value::Int(start + i * step)).collect()))
}

fn dict<'t>(args: Args<'t>) -> Result<Dict<'t>> {
    let mut dict = Dict::default();
    if args.positional.len() > 1 {
        fail!("dict expected at most 1 argument, got {}", args.positional.len());
    }
    match args.positional.into_iter().next() {
        None => {}
        Some(Value::Dict(other)) => dict = (*other).clone(),
        Some(other) => {
            for pair in other.iterate()? {
                let pair = pair.iterate()?;
                let [key, value] = &pair[..] else {
                    fail!(
                        "dictionary update sequence element has length {}; 2 is required",
                        pair.len()
                    );
                };
                dict.insert(key.clone(), value.clone())?;
            }
        }
    }
    for (name, value) in args.named {
        dict.set(&name, value);
    }
    Ok(dict)
}
