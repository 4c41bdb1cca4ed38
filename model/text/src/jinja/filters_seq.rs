//! Filters over sequences.

use std::rc::Rc;

use super::args::{flag, integer, text, Args};
use super::budget::{charge, charge_items, charge_text, room, room_for_items, NEW_ELEMENT};
use super::budget::{room_for_more, room_for_text, STEP};
use super::compare::{compare, equal, sort_by};
use super::dict::Dict;
use super::eval::Renderer;
use super::repr::text_of;
use super::value::{Items, View};
use super::{fail, filters, is_tests, ops, str_methods, Result, Value};

pub fn apply<'t>(
    renderer: &mut Renderer<'t>,
    name: &str,
    input: Value<'t>,
    args: Args<'t>,
) -> Result<Value<'t>> {
    match name {
        "list" => {
            args.bind::<0>(name, [], 0)?;
            Value::list(input.iterate()?.rest()?)
        }
        "items" => {
            args.bind::<0>(name, [], 0)?;
            match &input {
                Value::Undefined(_) => Value::generator(Vec::new()),
                Value::Dict(dict) => {
                    Value::generator(Value::view(View::Items(dict.clone())).iterate()?.rest()?)
                }
                _ => fail!("Can only get item pairs from a mapping."),
            }
        }
        "first" => {
            args.bind::<0>(name, [], 0)?;
            Ok(match input.iterate()?.next() {
                Some(first) => first?,
                None => Value::Undefined("No first item, sequence was empty.".into()),
            })
        }
        "last" => {
            args.bind::<0>(name, [], 0)?;
            let last = last(&input)?;
            Ok(last.unwrap_or_else(|| Value::Undefined("No last item, sequence was empty.".into())))
        }
        "reverse" => {
            args.bind::<0>(name, [], 0)?;
            if let Value::Str(s) = &input {
                room_for_text(s.len())?;
                charge_text(s.len())?;
                return Ok(Value::str(s.chars().rev().collect::<String>()));
            }
            let mut items = input.iterate()?.rest()?;
            items.reverse();
            // Only what cannot be walked backwards is copied into a list first.
            if matches!(input, Value::Iter(_)) {
                Value::list(items)
            } else {
                Value::generator(items)
            }
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

/// Of what can be walked backwards.
fn last<'t>(value: &Value<'t>) -> Result<Option<Value<'t>>> {
    Ok(match value {
        Value::Iter(_) => fail!("'generator' object is not reversible"),
        Value::List(items) | Value::Tuple(items) => items.last().cloned(),
        Value::View(view) => match &**view {
            View::Range(range) => range.len.checked_sub(1).map(|at| Value::Int(range.at(at))),
            View::Keys(dict) => dict.iter().last().map(|(key, _)| key.clone()),
            View::Values(dict) => dict.iter().last().map(|(_, value)| value.clone()),
            View::Items(dict) => match dict.iter().last() {
                Some((key, value)) => Some(Value::tuple(vec![key.clone(), value.clone()])?),
                None => None,
            },
        },
        other => other.iterate()?.last().transpose()?,
    })
}

/// `a.b.0` of an item: items before attributes, at each step.
fn lookup<'t>(item: &Value<'t>, path: &Value<'t>) -> Result<Value<'t>> {
    charge(STEP)?;
    let Value::Str(path) = path else { return ops::get_item(item, path) };
    charge_text(path.len().saturating_mul(2))?;
    let mut value = item.clone();
    for part in path.split('.') {
        charge(STEP)?;
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

fn fold_case<'t>(value: Value<'t>, case_sensitive: bool) -> Result<Value<'t>> {
    match &value {
        Value::Str(s) if !case_sensitive => {
            charge(NEW_ELEMENT)?;
            Ok(Value::str(str_methods::lower(s)?))
        }
        _ => Ok(value),
    }
}

fn join<'t>(input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    let [separator, attribute] = args.bind("join", ["d", "attribute"], 0)?;
    let separator = separator.unwrap_or_else(|| Value::str(""));
    let separator = text_of(&separator)?;
    let mut out = String::new();
    for (at, item) in input.iterate()?.enumerate() {
        let item = attribute_of(&item?, &attribute)?;
        let part = text_of(&item)?;
        charge(STEP)?;
        room_for_more(&out, separator.len() + part.len())?;
        if at > 0 {
            out.push_str(&separator);
        }
        out.push_str(&part);
    }
    room(out.len())?;
    Ok(Value::str(out))
}

fn map<'t>(
    renderer: &mut Renderer<'t>,
    input: &Value<'t>,
    mut args: Args<'t>,
) -> Result<Value<'t>> {
    if !input.truthy()? {
        return Value::generator(Vec::new());
    }
    let mut mapped = Vec::new();
    if args.positional.is_empty() {
        let [attribute, default] = args.bind("map", ["attribute", "default"], 0)?;
        let Some(attribute) = attribute else { fail!("map requires a filter argument") };
        for item in input.iterate()? {
            let value = lookup(&item?, &attribute)?;
            mapped.push(match (&default, &value) {
                (Some(default), Value::Undefined(_)) => default.clone(),
                _ => value,
            });
        }
        return Value::generator(mapped);
    }
    let name = text(Some(args.positional.remove(0)), "", "map")?;
    for item in input.iterate()? {
        mapped.push(filters::apply(renderer, &name, item?, args.copy()?)?);
    }
    Value::generator(mapped)
}

/// select, reject, selectattr, rejectattr.
fn filter_items<'t>(
    input: &Value<'t>,
    mut args: Args<'t>,
    keep: bool,
    by_attribute: bool,
) -> Result<Value<'t>> {
    if !input.truthy()? {
        return Value::generator(Vec::new());
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
        let item = item?;
        charge(STEP)?;
        let value = attribute_of(&item, &attribute)?;
        let passes = match &test {
            None => value.truthy()?,
            Some(name) => is_tests::apply(name, &value, args.copy()?)?,
        };
        if passes == keep {
            kept.push(item);
        }
    }
    Value::generator(kept)
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
                .map(|path| fold_case(lookup(item, &Value::str(path))?, case_sensitive))
                .collect();
            Value::list(parts?)
        }
        _ => {
            charge(NEW_ELEMENT)?;
            Value::list(vec![fold_case(attribute_of(item, attribute)?, case_sensitive)?])
        }
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
    // Sorting takes as much memory again for half of them.
    room_for_items(keyed.len())?;
    sort_by(&mut keyed, |(key, _)| key)?;
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
        let item = item?;
        keyed.push((sort_key(&item, &attribute, case_sensitive)?, item));
    }
    let keyed = sorted(keyed, flag(reverse, false)?)?;
    room_for_items(keyed.len())?;
    Value::list(keyed.into_iter().map(|(_, item)| item).collect())
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
    if !matches!(&*by, "key" | "value") {
        fail!("You can only sort by either \"key\" or \"value\"");
    }
    let mut keyed = Vec::new();
    for (key, value) in dict.iter() {
        charge(NEW_ELEMENT)?;
        let by_what = if &*by == "key" { key } else { value };
        let pair = Value::tuple(vec![key.clone(), value.clone()])?;
        keyed.push((fold_case(by_what.clone(), case_sensitive)?, pair));
    }
    let keyed = sorted(keyed, flag(reverse, false)?)?;
    room_for_items(keyed.len())?;
    Value::list(keyed.into_iter().map(|(_, pair)| pair).collect())
}

fn unique<'t>(input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    let [case_sensitive, attribute] = args.bind("unique", ["case_sensitive", "attribute"], 0)?;
    let case_sensitive = flag(case_sensitive, false)?;
    let mut seen = Dict::default();
    let mut kept = Vec::new();
    for item in input.iterate()? {
        let item = item?;
        let key = fold_case(attribute_of(&item, &attribute)?, case_sensitive)?;
        if seen.get(&key)?.is_none() {
            seen.insert(key, Value::None)?;
            kept.push(item);
        }
    }
    Value::generator(kept)
}

fn groupby<'t>(input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    let [attribute, default, case_sensitive] =
        args.bind("groupby", ["attribute", "default", "case_sensitive"], 1)?;
    let case_sensitive = flag(case_sensitive, false)?;
    let mut keyed = Vec::new();
    for item in input.iterate()? {
        let item = item?;
        let mut key = attribute_of(&item, &attribute)?;
        if let (Value::Undefined(_), Some(default)) = (&key, &default) {
            key = default.clone();
        }
        charge(NEW_ELEMENT)?;
        keyed.push((fold_case(key.clone(), case_sensitive)?, Value::tuple(vec![key, item])?));
    }
    let mut groups: Vec<(Value<'t>, Value<'t>, Vec<Value<'t>>)> = Vec::new();
    for (folded, pair) in sorted(keyed, false)? {
        let Value::Tuple(pair) = pair else { continue };
        charge(NEW_ELEMENT)?;
        match groups.last_mut() {
            Some((last, _, items)) if equal(last, &folded)? => items.push(pair[1].clone()),
            _ => groups.push((folded, pair[0].clone(), vec![pair[1].clone()])),
        }
    }
    let mut pairs = Vec::new();
    for (_, key, items) in groups {
        charge(NEW_ELEMENT)?;
        let mut group = Items::new(vec![key, Value::list(items)?])?;
        group.is_group = true;
        pairs.push(Value::Tuple(Rc::new(group)));
    }
    Value::list(pairs)
}

fn extreme<'t>(input: &Value<'t>, args: Args<'t>, name: &str) -> Result<Value<'t>> {
    let [case_sensitive, attribute] = args.bind(name, ["case_sensitive", "attribute"], 0)?;
    let case_sensitive = flag(case_sensitive, false)?;
    let mut best: Option<(Value<'t>, Value<'t>)> = None;
    for item in input.iterate()? {
        let item = item?;
        charge(STEP)?;
        let key = fold_case(attribute_of(&item, &attribute)?, case_sensitive)?;
        let better = match &best {
            None => true,
            Some((known, _)) if name == "min" => {
                compare(&key, known, "<")?.is_some_and(|o| o.is_lt())
            }
            Some((known, _)) => compare(&key, known, ">")?.is_some_and(|o| o.is_gt()),
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
        charge(STEP)?;
        total = filters::add(&total, &attribute_of(&item?, &attribute)?)?;
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
    let count = integer(count, 0, "batch")?;
    let mut batches = Vec::new();
    let mut batch = Vec::new();
    for item in input.iterate()? {
        if batch.len() as i128 == count {
            charge(NEW_ELEMENT)?;
            batches.push(Value::list(std::mem::take(&mut batch))?);
        }
        batch.push(item?);
    }
    if !batch.is_empty() {
        if let (Some(fill), true) =
            (fill.filter(|f| !matches!(f, Value::None)), (batch.len() as i128) < count)
        {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            room_for_items(count)?;
            batch.resize(count, fill);
        }
        batches.push(Value::list(batch)?);
    }
    Value::generator(batches)
}

fn slice<'t>(input: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
    let [count, fill] = args.bind("slice", ["slices", "fill_with"], 1)?;
    let count = positive(count, "slice")?;
    let items = input.items()?;
    let fill = fill.filter(|fill| !matches!(fill, Value::None));
    let (each, longer) = (items.len() / count, items.len() % count);
    let mut at = 0;
    let mut slices = Vec::new();
    for number in 0..count {
        charge(NEW_ELEMENT)?;
        let size = each + (number < longer) as usize;
        charge_items(size)?;
        let mut part = items[at..at + size].to_vec();
        at += size;
        if number >= longer {
            part.extend(fill.clone());
        }
        slices.push(Value::list(part)?);
    }
    Value::generator(slices)
}
