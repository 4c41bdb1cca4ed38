//! How deep what is nested and what refers to each other goes, before a compiler that calls itself
//! for each level sees it. Nothing here calls itself.

use std::collections::HashMap;

use serde_json::Value;

use crate::{Code, Failure};

/// Levels of a schema (objects and references) or of a grammar (rules, terminals, brackets). A
/// compiler's stack takes several times as many: tests/model/grammar_depth_test.cpp.
const LEVELS_MAX: u64 = 1000;

#[derive(Default)]
struct Node {
    name: String,
    levels: u64,
    /// What stands inside it; later nodes than itself.
    parts: Vec<usize>,
    /// What it refers to by name.
    names: Vec<usize>,
}

#[derive(Default)]
struct Graph {
    nodes: Vec<Node>,
}

impl Graph {
    /// Groups of nodes that can all reach each other, what a group leads to before the group.
    fn groups(&self) -> Vec<Vec<usize>> {
        const UNSEEN: usize = usize::MAX;
        let mut order = vec![UNSEEN; self.nodes.len()];
        let mut lowest = order.clone();
        let mut is_open = vec![false; self.nodes.len()];
        let (mut open, mut groups, mut n_seen) = (Vec::new(), Vec::new(), 0);
        // A node and which of its edges is next.
        let mut path = vec![(0, 0)];
        while let Some((at, edge)) = path.pop() {
            if edge == 0 {
                (order[at], lowest[at], is_open[at]) = (n_seen, n_seen, true);
                n_seen += 1;
                open.push(at);
            }
            let node = &self.nodes[at];
            let to = node.parts.get(edge).or_else(|| node.names.get(edge - node.parts.len()));
            if let Some(&to) = to {
                path.push((at, edge + 1));
                if order[to] == UNSEEN {
                    path.push((to, 0));
                } else if is_open[to] {
                    lowest[at] = lowest[at].min(order[to]);
                }
                continue;
            }
            if let Some(&(before, _)) = path.last() {
                lowest[before] = lowest[before].min(lowest[at]);
            }
            if lowest[at] == order[at] {
                let first = open.iter().rposition(|&node| node == at).unwrap_or(0);
                let group = open.split_off(first);
                group.iter().for_each(|&node| is_open[node] = false);
                groups.push(group);
            }
        }
        groups
    }

    /// No path from the first node has more levels, however often names lead back: a name is
    /// followed once.
    fn levels(&self) -> Vec<u64> {
        let groups = self.groups();
        let mut group_of = vec![usize::MAX; self.nodes.len()];
        for (index, group) in groups.iter().enumerate() {
            group.iter().for_each(|&node| group_of[node] = index);
        }
        let mut is_named = vec![false; self.nodes.len()];
        for node in &self.nodes {
            node.names.iter().for_each(|&to| is_named[to] = true);
        }
        // Inside of its group, by parts alone; of all a node leads to, for a whole group.
        let mut inside = vec![0; self.nodes.len()];
        let mut beyond = vec![0; groups.len()];
        for (index, group) in groups.iter().enumerate() {
            let mut group = group.clone();
            group.sort_unstable_by(|a, b| b.cmp(a));
            let (mut by_names, mut by_parts, mut after) = (0, 0, 0);
            for at in group {
                let node = &self.nodes[at];
                let same = |to: &&usize| group_of[**to] == index;
                let below = node.parts.iter().filter(same).map(|&to| inside[to]).max();
                inside[at] = node.levels + below.unwrap_or(0);
                if is_named[at] {
                    by_names += inside[at];
                }
                by_parts = by_parts.max(inside[at]);
                let others = node.parts.iter().chain(&node.names).filter(|to| !same(to));
                after = others.map(|&to| beyond[group_of[to]]).max().unwrap_or(0).max(after);
            }
            beyond[index] = after + by_names + if groups[index].len() > 1 || by_names == 0 { by_parts } else { 0 };
        }
        group_of.iter().map(|&group| beyond.get(group).copied().unwrap_or(0)).collect()
    }

    fn check(&self, what: &str) -> Result<(), Failure> {
        if self.nodes.is_empty() {
            return Ok(());
        }
        let levels = self.levels();
        if levels[0] <= LEVELS_MAX {
            return Ok(());
        }
        // The last on the deepest way that is still too deep: there it is to be cut.
        let mut at = 0;
        for _ in 0..self.nodes.len() {
            let node = &self.nodes[at];
            let next = node.parts.iter().chain(&node.names).copied().max_by_key(|&to| levels[to]);
            match next {
                Some(to) if levels[to] > LEVELS_MAX && levels[to] < levels[at] => at = to,
                _ => break,
            }
        }
        let name: String = self.nodes[at].name.chars().take(100).collect();
        let place = if name.is_empty() { String::new() } else { format!(" at {name}") };
        Err(Failure::new(
            Code::TooComplex,
            format!(
                "{what}{place}: what is nested and what refers to each other is up to {} levels deep, at most {LEVELS_MAX}",
                levels[at]
            ),
        ))
    }

    fn add(&mut self, name: String, levels: u64) -> usize {
        self.nodes.push(Node { name, levels, ..Node::default() });
        self.nodes.len() - 1
    }
}

fn decoded(part: &str) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(value) if byte == b'%' => {
                bytes.push(value);
                rest = &after[2..];
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Schemas in a graph: every object and array is a node, under the pointer to it.
struct SchemaGraph<'s> {
    graph: Graph,
    /// By where the value is in memory: the ids of pointers' targets.
    nodes: HashMap<*const Value, usize>,
    anchors: HashMap<&'s str, usize>,
    references: Vec<(usize, &'s str)>,
}

impl<'s> SchemaGraph<'s> {
    fn add(&mut self, root: &'s Value) -> usize {
        let first = self.graph.nodes.len();
        // Names are made for those that are told of: the parts' keys are enough.
        let mut todo: Vec<(Option<usize>, &'s str, &'s Value)> = vec![(None, "", root)];
        while let Some((parent, key, value)) = todo.pop() {
            if !value.is_object() && !value.is_array() {
                continue;
            }
            let name = if key.is_empty() { String::new() } else { format!("\"{key}\"") };
            let at = self.graph.add(name, value.is_object() as u64);
            self.nodes.insert(value, at);
            if let Some(parent) = parent {
                self.graph.nodes[parent].parts.push(at);
            }
            match value {
                Value::Array(elements) => {
                    todo.extend(elements.iter().map(|element| (Some(at), key, element)));
                }
                Value::Object(members) => {
                    for (key, member) in members {
                        match (key.as_str(), member) {
                            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(to)) => {
                                self.references.push((at, to));
                            }
                            ("$anchor" | "$dynamicAnchor" | "$id" | "id", Value::String(name)) => {
                                self.anchors.insert(name.trim_start_matches('#'), at);
                            }
                            _ => todo.push((Some(at), key, member)),
                        }
                    }
                }
                _ => {}
            }
        }
        first
    }

    fn link(&mut self, root: &'s Value) {
        for (from, to) in std::mem::take(&mut self.references) {
            let (base, fragment) = to.split_once('#').unwrap_or((to, ""));
            let fragment = decoded(fragment);
            let found = if fragment.is_empty() && base.is_empty() || fragment.starts_with('/') {
                root.pointer(&fragment).and_then(|target| self.nodes.get(&(target as *const Value)))
            } else {
                let name = if fragment.is_empty() { base } else { fragment.as_str() };
                self.anchors.get(name)
            };
            if let Some(&target) = found {
                self.graph.nodes[from].levels += 1;
                self.graph.nodes[from].names.push(target);
            }
        }
    }
}

fn schema_graph(root: &Value) -> Graph {
    let mut schema = SchemaGraph {
        graph: Graph::default(),
        nodes: HashMap::new(),
        anchors: HashMap::new(),
        references: Vec::new(),
    };
    schema.add(root);
    schema.link(root);
    schema.graph
}

pub fn check_schema(root: &Value) -> Result<(), Failure> {
    schema_graph(root).check("JSON schema")
}

/// Reads as much of Lark as says which rule uses which, and how deep brackets go.
struct LarkGraph<'s> {
    text: &'s str,
    at: usize,
    graph: Graph,
    by_name: HashMap<&'s str, usize>,
    /// The rule that the text is in; at first nobody's.
    rule: usize,
    brackets: u64,
}

impl<'s> LarkGraph<'s> {
    fn byte(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    /// To behind what ends with this byte; a backslash takes the next one with it.
    fn skip_quoted(&mut self, end: u8) {
        self.at += 1;
        while self.at < self.text.len() {
            let byte = self.byte(0);
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == end || byte == b'\n' {
                return;
            }
        }
    }

    fn named(&mut self, name: &'s str) -> usize {
        let graph = &mut self.graph;
        *self.by_name.entry(name).or_insert_with(|| graph.add(name.to_owned(), 1))
    }

    fn refer(&mut self, name: Option<&'s str>) {
        if let Some(name) = name {
            let to = self.named(name);
            self.graph.nodes[self.rule].names.push(to);
        }
    }

    fn word(&mut self) -> &'s str {
        let rest = &self.text[self.at..];
        let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    fn nest(&mut self, by: u64) {
        self.brackets += by;
        let node = &mut self.graph.nodes[self.rule];
        node.levels = node.levels.max(1 + self.brackets);
    }

    /// The JSON behind %json and its like: a schema, whose depth is that of a part of the rule.
    fn json(&mut self, is_schema: bool) -> Result<(), Failure> {
        let mut values = serde_json::Deserializer::from_str(&self.text[self.at..]).into_iter::<Value>();
        let Some(Ok(value)) = values.next() else { return Ok(()) };  // the compiler says what is wrong
        self.at += values.byte_offset();
        if is_schema {
            check_schema(&value)?;
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), Failure> {
        // The first word of a line, or behind a brace, begins a rule if a colon follows.
        let mut first: Option<&'s str> = None;
        let mut begins = true;
        while self.at < self.text.len() {
            let byte = self.byte(0);
            match byte {
                b'\n' | b'{' => {
                    begins = true;
                    self.refer(first.take());
                    self.at += 1;
                    self.nest((byte == b'{') as u64);
                    continue;
                }
                b'/' if self.byte(1) == b'/' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.find('\n').unwrap_or(rest.len());
                    continue;
                }
                b'"' | b'/' => self.skip_quoted(byte),
                b'(' | b'[' | b'~' => {
                    self.nest(1);
                    self.at += 1;
                }
                b')' | b']' | b'}' => {
                    self.brackets = self.brackets.saturating_sub(1);
                    self.at += 1;
                }
                b':' => {
                    let is_head = self.byte(1) != b':';
                    self.at += if is_head { 1 } else { 2 };
                    if let (true, Some(name)) = (is_head, first.take()) {
                        self.rule = self.named(name);
                        self.brackets = 0;
                    }
                }
                b'%' => {
                    self.at += 1;
                    match self.word() {
                        "json" => self.json(true)?,
                        "regex" | "llguidance" => self.json(false)?,
                        _ => {}
                    }
                }
                _ if byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80 => {
                    let before = self.at;
                    let word = self.word();
                    if self.at == before {
                        let rest = &self.text[self.at..];
                        self.at += rest.chars().next().map_or(1, char::len_utf8);
                        continue;
                    }
                    if std::mem::take(&mut begins) {
                        first = Some(word);
                    } else {
                        self.refer(Some(word));
                    }
                }
                _ => self.at += 1,
            }
        }
        self.refer(first);
        Ok(())
    }
}

pub fn check_lark(text: &str) -> Result<(), Failure> {
    let mut lark =
        LarkGraph { text, at: 0, graph: Graph::default(), by_name: HashMap::new(), rule: 0, brackets: 0 };
    lark.graph.add(String::new(), 0);
    lark.read()?;
    // Whatever is the first to be compiled: all are reached from the first node.
    let all: Vec<usize> = (1..lark.graph.nodes.len()).collect();
    lark.graph.nodes[0].names.extend(all);
    lark.graph.nodes[0].levels = 0;
    lark.graph.check("grammar")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(schema: &str) -> u64 {
        schema_graph(&serde_json::from_str(schema).unwrap()).levels()[0]
    }

    #[test]
    fn counts_objects_and_references() {
        assert_eq!(levels("{}"), 1);
        assert_eq!(levels(r#"{"items":{"items":{}}}"#), 3);
        assert_eq!(levels(r##"{"$ref":"#/$defs/a","$defs":{"a":{"items":{}}}}"##), 5);
        let chained = |n: usize| {
            let defs: Vec<String> =
                (0..n).map(|i| format!(r##""d{i}":{{"$ref":"#/$defs/d{}"}}"##, i + 1)).collect();
            format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{},"d{n}":{{}}}}}}"##, defs.join(","))
        };
        assert!(levels(&chained(400)) <= LEVELS_MAX);
        assert!(levels(&chained(500)) > LEVELS_MAX);
        assert!(levels(&chained(100_000)) > LEVELS_MAX);
    }

    #[test]
    fn what_leads_back_counts_once() {
        let list = r##"{"type":"object","properties":{"next":{"$ref":"#"}}}"##;
        assert!(levels(list) < 10, "{}", levels(list));
        let both = r##"{"$ref":"#/$defs/a~1b","$defs":{"a/b":{"items":{"$ref":"#/%24defs/c"}},"c":{"items":{"$ref":"#/$defs/a~1b"}}}}"##;
        assert!((5..20).contains(&levels(both)), "{}", levels(both));
        // Many that all know each other.
        let n = 150;
        let all: Vec<String> = (0..n).map(|i| format!(r##""p{i}":{{"$ref":"#/$defs/d{i}"}}"##)).collect();
        let one = format!(r#"{{"properties":{{{}}}}}"#, all.join(","));
        let defs: Vec<String> = (0..n).map(|i| format!(r#""d{i}":{one}"#)).collect();
        let found = levels(&format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{}}}}}"##, defs.join(",")));
        assert!((450..LEVELS_MAX).contains(&found), "{found}");
    }

    #[test]
    fn rules_in_a_chain_are_as_deep_as_they_are_many() {
        let chain = |n: usize, rule: &str| {
            let rules: Vec<String> = (0..n)
                .map(|i| rule.replace("NEXT", &format!("r{}", i + 1)).replace("OWN", &format!("r{i}")))
                .collect();
            format!("start: r0\n{}\nr{n}: \"a\"", rules.join("\n"))
        };
        assert!(check_lark(&chain(900, "OWN: NEXT")).is_ok());
        let forms = ["OWN: NEXT", "?OWN: \"x\" NEXT?", "OWN: /[\\/]:/ NEXT", "OWN[capture=\"a:b\"]: NEXT", "OWN.2 :\n | NEXT\n", "!OWN: (NEXT)"];
        for form in forms {
            let error = check_lark(&chain(1100, form)).expect_err(form);
            assert!(error.message.contains("levels"), "{}", error.message);
        }
        assert!(check_lark(&format!("start: {}", "~".repeat(2000))).is_err());
        assert!(check_lark(&format!("start: {}\"a\"{}", "(".repeat(1500), ")".repeat(1500))).is_err());
        // Wide, and with words in quotes and comments, is not deep.
        let wide: Vec<String> = (0..5000).map(|i| format!("r{i}: \"a r1 (((\" // r7 (((\n")).collect();
        let uses: Vec<String> = (0..5000).map(|i| format!("r{i}")).collect();
        assert!(check_lark(&format!("start: {}\n{}", uses.join(" | "), wide.concat())).is_ok());
    }
}
