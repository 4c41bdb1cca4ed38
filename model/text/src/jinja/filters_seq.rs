//! Filters over sequences.

use super::args::{flag, integer, text, Args};
use super::eval::Renderer;
use super::repr::to_str;
use super::value::ViewKind;
use super::{fail, filters, is_tests, ops, Result, Value};

pub fn apply<'t>(
    renderer: &mut Renderer<'t>,
    name: &str,
    input: Value<'t>,
    args: Args<'t>,
) -> Result<Value<'t>> {
    match name {
        "list" => {
            args.bind::<0>(name, [], 0)?;
            input.iterate().map(Value::list)
        }
        "items" => {
            args.bind::<0>(name, [], 0)?;
            match &input {
                Value::Undefined(_) => Ok(Value::generator(Vec::new())),
                Value::Dict(dict) => Ok(Value::generator(dict.items())),
                _ => fail!("Can only get item pairs from a mapping."),
            }
        }
        "first" => {
            args.bind::<0>(name, [], 0)?;
            let first = match &input {
                Value::Iter(generator) => generator.borrow_mut().items.pop_front(),
                other => other.iterate()?.into_iter().next(),
            };
            Ok(first
                .unwrap_or_else(|| Value::Undefined("No first item, sequence was empty.".into())))
        }
        "last" => {
            args.bind::<0>(name, [], 0)?;
            let last = reversible(&input)?.pop();
            Ok(last.unwrap_or_else(|| Value::Undefined("No last item, sequence was empty.".into())))
        }
        "reverse" => {
            args.bind::<0>(name, [], 0)?;
            if let Value::Str(s) = &input {
                return Ok(Value::str(s.chars().rev().collect::<String>()));
            }
            let mut items = input.iterate()?;
            items.reverse();
            // Only what cannot be walked backwards is copied into a list first.
            Ok(if matches!(input, Value::Iter(_)) {
                Value::list(items)
            } else {
                Value::generator(items)
            })
        }
        "join" => join(&input, args),
        "map" => map(renderer, &input, args),
        "select" | "reject" => filter_items(&input, args, name == "select", false),
        "selectattr" | "rejectattr" => filter_items(&input, args, name == "selectattr", true),
        "sort" => sort(&input, args),
        "dictsort" => dictsort(&input, args),
        "unique" => unique(&input, args),
        "groupby" => groupby(&input, args),
        "min" | "max" => extreme(&input, args, name),
        "sum" => sum(&input, args),
        "batch" => batch(&input, args),
        "slice" => slice(&input, args),
        _ => fail!("No filter named '{name}'."),
    }
}

fn reversible<'t>(value: &Value<'t>) -> Result<Vec<Value<'t>>> {
    match value {
        Value::Iter(_) => fail!("'generator' object is not reversible"),
        other => other.iterate(),
    }
}

/// `a.b.0` of an item: items before attributes, at each step.
fn lookup<'t>(item: &Value<'t>, path: &Value<'t>) -> Result<Value<'t>> {
    let Value::Str(path) = path else { return ops::get_item(item, path) };
    let mut value = item.clone();
    for part in path.split('.') {
        let key = match part.parse::<i128>() {
            Ok(index) if part.bytes().all(|b| b.is_ascii_digit()) => Value::Int(index),
            _ => Value::str(part),
        };
        value = ops::get_item(&value, &key)?;
    }
    Ok(value)
}

fn attribute_of<'t>(item: &Value<'t>, attribute: &Option<Value<'t>>) -> Result<Value<'t>> {
    match attribute {
        None | Some(Value::None) => Ok(item.clone()),
        Some(path) => lookup(item, path),
    }
}

fn fold_case<'t>(value: Value<'t>, case_sensitive: bool) -> Value<'t> {
    match &value {
        Value::Str(s) if !case_sensitive => Value::str(s.to_lowercase()),
        _ => value,
    }
}

fn join<'t>(input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    let [separator, attribute] = args.bind("join", ["d", "attribute"], 0)?;
    let separator = separator.map_or(Ok(String::new()), |s| to_str(&s))?;
    let mut parts = Vec::new();
    let mut len = 0usize;
    for item in input.iterate()? {
        parts.push(to_str(&attribute_of(&item, &attribute)?)?);
        len += parts[parts.len() - 1].len() + separator.len();
        ops::check_text(len)?;
    }
    Ok(Value::str(parts.join(&separator)))
}

fn map<'t>(
    renderer: &mut Renderer<'t>,
    input: &Value<'t>,
    mut args: Args<'t>,
) -> Result<Value<'t>> {
    if !input.truthy()? {
        return Ok(Value::generator(Vec::new()));
    }
    let mut mapped = Vec::new();
    if args.positional.is_empty() {
        let [attribute, default] = args.bind("map", ["attribute", "default"], 0)?;
        let Some(attribute) = attribute else { fail!("map requires a filter argument") };
        for item in input.iterate()? {
            let value = lookup(&item, &attribute)?;
            mapped.push(match (&default, &value) {
                (Some(default), Value::Undefined(_)) => default.clone(),
                _ => value,
            });
        }
        return Ok(Value::generator(mapped));
    }
    let name = text(Some(args.positional.remove(0)), "", "map")?;
    for item in input.iterate()? {
        mapped.push(filters::apply(renderer, &name, item, args.clone())?);
    }
    Ok(Value::generator(mapped))
}

/// select, reject, selectattr, rejectattr.
fn filter_items<'t>(
    input: &Value<'t>,
    mut args: Args<'t>,
    keep: bool,
    by_attribute: bool,
) -> Result<Value<'t>> {
    if !input.truthy()? {
        return Ok(Value::generator(Vec::new()));
    }
    if by_attribute && args.positional.is_empty() {
        fail!("Missing parameter for attribute name");
    }
    let attribute = by_attribute.then(|| args.positional.remove(0));
    let test = if args.positional.is_empty() {
        None
    } else {
        Some(text(Some(args.positional.remove(0)), "", "select")?)
    };
    let mut kept = Vec::new();
    for item in input.iterate()? {
        let value = attribute_of(&item, &attribute)?;
        let passes = match &test {
            None => value.truthy()?,
            Some(name) => is_tests::apply(name, &value, args.clone())?,
        };
        if passes == keep {
            kept.push(item);
        }
    }
    Ok(Value::generator(kept))
}

/// A list of the attributes, `a,b`, or of the one: equal undefined ones then need no order.
fn sort_key<'t>(
    item: &Value<'t>,
    attribute: &Option<Value<'t>>,
    case_sensitive: bool,
) -> Result<Value<'t>> {
    match attribute {
        Some(Value::Str(paths)) if paths.contains(',') => {
            let parts: Result<Vec<_>> = paths
                .split(',')
                .map(|path| Ok(fold_case(lookup(item, &Value::str(path))?, case_sensitive)))
                .collect();
            parts.map(Value::list)
        }
        _ => Ok(Value::list(vec![fold_case(attribute_of(item, attribute)?, case_sensitive)])),
    }
}

fn sorted<'t>(
    keyed: Vec<(Value<'t>, Value<'t>)>,
    reverse: bool,
) -> Result<Vec<(Value<'t>, Value<'t>)>> {
    let mut keyed = keyed;
    // Reversed before and after, so that equal ones keep their order.
    if reverse {
        keyed.reverse();
    }
    ops::sort_by(&mut keyed, |(key, _)| key.clone())?;
    if reverse {
        keyed.reverse();
    }
    Ok(keyed)
}

fn sort<'t>(input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    let [reverse, case_sensitive, attribute] =
        args.bind("sort", ["reverse", "case_sensitive", "attribute"], 0)?;
    let case_sensitive = flag(case_sensitive, false)?;
    let mut keyed = Vec::new();
    for item in input.iterate()? {
        keyed.push((sort_key(&item, &attribute, case_sensitive)?, item));
    }
    let keyed = sorted(keyed, flag(reverse, false)?)?;
    Ok(Value::list(keyed.into_iter().map(|(_, item)| item).collect()))
}

fn dictsort<'t>(input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    let [case_sensitive, by, reverse] =
        args.bind("dictsort", ["case_sensitive", "by", "reverse"], 0)?;
    let case_sensitive = flag(case_sensitive, false)?;
    let by = text(by, "key", "dictsort")?;
    input.check_defined()?;
    let Value::Dict(dict) = input else {
        fail!("'{}' object has no attribute 'items'", input.type_name())
    };
    if by != "key" && by != "value" {
        fail!("You can only sort by either \"key\" or \"value\"");
    }
    let keyed = dict
        .iter()
        .map(|(key, value)| {
            let by_what = if by == "key" { key } else { value };
            (
                fold_case(by_what.clone(), case_sensitive),
                Value::tuple(vec![key.clone(), value.clone()]),
            )
        })
        .collect();
    let keyed = sorted(keyed, flag(reverse, false)?)?;
    Ok(Value::list(keyed.into_iter().map(|(_, pair)| pair).collect()))
}

fn unique<'t>(input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    let [case_sensitive, attribute] = args.bind("unique", ["case_sensitive", "attribute"], 0)?;
    let case_sensitive = flag(case_sensitive, false)?;
    let mut seen = super::dict::Dict::default();
    let mut kept = Vec::new();
    for item in input.iterate()? {
        let key = fold_case(attribute_of(&item, &attribute)?, case_sensitive);
        if seen.get(&key)?.is_none() {
            seen.insert(key, Value::None)?;
            kept.push(item);
        }
    }
    Ok(Value::generator(kept))
}

fn groupby<'t>(input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    let [attribute, default, case_sensitive] =
        args.bind("groupby", ["attribute", "default", "case_sensitive"], 1)?;
    let case_sensitive = flag(case_sensitive, false)?;
    let mut keyed = Vec::new();
    for item in input.iterate()? {
        let mut key = attribute_of(&item, &attribute)?;
        if let (Value::Undefined(_), Some(default)) = (&key, &default) {
            key = default.clone();
        }
        keyed.push((fold_case(key.clone(), case_sensitive), Value::tuple(vec![key, item])));
    }
    let mut groups: Vec<(Value<'t>, Value<'t>, Vec<Value<'t>>)> = Vec::new();
    for (folded, pair) in sorted(keyed, false)? {
        let Value::Tuple(pair) = pair else { continue };
        match groups.last_mut() {
            Some((last, _, items)) if ops::equal(last, &folded) => items.push(pair[1].clone()),
            _ => groups.push((folded, pair[0].clone(), vec![pair[1].clone()])),
        }
    }
    Ok(Value::list(
        groups
            .into_iter()
            .map(|(_, key, items)| Value::tuple(vec![key, Value::list(items)]))
            .collect(),
    ))
}

fn extreme<'t>(input: &Value<'t>, args: Args<'t>, name: &str) -> Result<Value<'t>> {
    let [case_sensitive, attribute] = args.bind(name, ["case_sensitive", "attribute"], 0)?;
    let case_sensitive = flag(case_sensitive, false)?;
    let mut best: Option<(Value<'t>, Value<'t>)> = None;
    for item in input.iterate()? {
        let key = fold_case(attribute_of(&item, &attribute)?, case_sensitive);
        let better = match &best {
            None => true,
            Some((known, _)) if name == "min" => {
                ops::compare(&key, known, "<")?.is_some_and(|o| o.is_lt())
            }
            Some((known, _)) => ops::compare(&key, known, ">")?.is_some_and(|o| o.is_gt()),
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or_else(
        || Value::Undefined("No aggregated item, sequence was empty.".into()),
        |(_, item)| item,
    ))
}

fn sum<'t>(input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    let [attribute, start] = args.bind("sum", ["attribute", "start"], 0)?;
    let mut total = start.unwrap_or(Value::Int(0));
    if let Value::Str(_) = total {
        fail!("sum() can't sum strings [use ''.join(seq) instead]");
    }
    for item in input.iterate()? {
        total = filters::add(&total, &attribute_of(&item, &attribute)?)?;
    }
    Ok(total)
}

fn positive(value: Option<Value<'_>>, what: &str) -> Result<usize> {
    let count = integer(value, 0, what)?;
    match usize::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => fail!("{what}: expected a positive number, found {count}"),
    }
}

fn batch<'t>(input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    let [count, fill] = args.bind("batch", ["linecount", "fill_with"], 1)?;
    let count = positive(count, "batch")?.min(1 << 20);
    let items = input.iterate()?;
    let mut batches: Vec<Vec<Value<'t>>> = items.chunks(count).map(<[_]>::to_vec).collect();
    if let (Some(last), Some(fill)) =
        (batches.last_mut(), fill.filter(|f| !matches!(f, Value::None)))
    {
        last.resize(count, fill);
    }
    Ok(Value::generator(batches.into_iter().map(Value::list).collect()))
}

fn slice<'t>(input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    let [count, fill] = args.bind("slice", ["slices", "fill_with"], 1)?;
    let count = positive(count, "slice")?.min(1 << 20);
    let items = match input {
        Value::View(view) if view.kind == ViewKind::Range => view.items.clone(),
        other => other.iterate()?,
    };
    let (each, longer) = (items.len() / count, items.len() % count);
    let mut at = 0;
    let mut slices = Vec::new();
    for number in 0..count {
        let size = each + (number < longer) as usize;
        let mut part = items[at..at + size].to_vec();
        at += size;
        match &fill {
            Some(fill) if !matches!(fill, Value::None) && number >= longer => {
                part.push(fill.clone())
            }
            _ => {}
        }
        slices.push(Value::list(part));
    }
    Ok(Value::generator(slices))
}
