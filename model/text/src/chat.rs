//! The chat template of a model: which source counts, its special tokens, and the variables that it
//! sees.

use crate::jinja::{self, parse_json, Template, Value};
use crate::{Code, Failure};

const TOKEN_NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

const DEFAULT: &str = "default";

struct Named {
    name: String,
    /// A template that does not parse fails when it is used: the model serves plain completions all
    /// the same.
    template: Result<Template, String>,
}

pub struct ChatTemplate {
    templates: Vec<Named>,
    tokens: Vec<(&'static str, String)>,
}

fn message(error: jinja::Error) -> String {
    match error {
        jinja::Error::Raised(text) | jinja::Error::Failed(text) => text,
    }
}

/// A special token is a text or an object with the text and its options.
fn token_text(value: &Value<'_>) -> Option<String> {
    match value {
        Value::Str(s) => Some(s.to_string()),
        Value::Dict(dict) => {
            dict.get_name("content").and_then(|content| content.as_str()).map(str::to_owned)
        }
        _ => None,
    }
}

fn field<'t>(object: &Value<'t>, name: &str) -> Option<Value<'t>> {
    match object {
        Value::Dict(dict) => {
            dict.get_name(name).filter(|value| !matches!(value, Value::None)).cloned()
        }
        _ => None,
    }
}

impl ChatTemplate {
    pub fn new(
        tokenizer_config: Option<&str>,
        special_tokens: Option<&str>,
        jinja: Option<&str>,
        template_json: Option<&str>,
    ) -> Result<ChatTemplate, Failure> {
        let parse = |text: Option<&str>, what: &str| -> Result<Value<'static>, Failure> {
            let Some(text) = text else { return Ok(Value::None) };
            let value = parse_json(text).map_err(|e| broken(what, &message(e)))?;
            match value {
                Value::Dict(_) => Ok(value),
                other => {
                    Err(broken(what, &format!("expected an object, found {}", other.type_name())))
                }
            }
        };
        let config = parse(tokenizer_config, "tokenizer_config.json")?;
        let map = parse(special_tokens, "special_tokens_map.json")?;
        let json = parse(template_json, "chat_template.json")?;

        let tokens = TOKEN_NAMES
            .into_iter()
            .filter_map(|name| {
                let value = field(&config, name).or_else(|| field(&map, name))?;
                Some((name, token_text(&value)?))
            })
            .collect();
        let in_config = field(&config, "chat_template");
        let sources = match (jinja, field(&json, "chat_template")) {
            (Some(source), _) => vec![(DEFAULT.to_owned(), source.to_owned())],
            (None, Some(value)) => {
                let mut named = sources_of(&value, "chat_template.json")?;
                if let (None, Some(value)) = (named.iter().find(|one| one.0 == DEFAULT), &in_config) {
                    let older = sources_of(value, "tokenizer_config.json")?;
                    named.extend(older.into_iter().find(|one| one.0 == DEFAULT));
                }
                named
            }
            (None, None) => match in_config {
                Some(value) => sources_of(&value, "tokenizer_config.json")?,
                None => Vec::new(),
            },
        };
        let templates = sources
            .into_iter()
            .map(|(name, source)| Named {
                name,
                template: Template::parse(&source).map_err(message),
            })
            .collect();
        Ok(ChatTemplate { templates, tokens })
    }

    /// The special tokens as tokenizer_config.json has them.
    pub fn tokens_json(&self) -> String {
        let tokens = self.tokens.iter().map(|(name, text)| (name.to_string(), text.clone().into()));
        serde_json::Value::Object(tokens.collect()).to_string()
    }

    pub fn exists(&self) -> bool {
        !self.templates.is_empty()
    }

    /// The first template that does not parse.
    pub fn check(&self) -> Result<(), Failure> {
        match self.templates.iter().find_map(|t| t.template.as_ref().err()) {
            None => Ok(()),
            Some(error) => Err(Failure::new(Code::TemplateFailed, error.clone())),
        }
    }

    /// As transformers chooses: the one that is asked for, tool_use when there are tools, else the default one.
    fn choose(&self, name: Option<&str>, with_tools: bool) -> Result<&Template, Failure> {
        let find = |name: &str| self.templates.iter().find(|t| t.name == name);
        let names = || {
            let mut names: Vec<&str> = self.templates.iter().map(|t| t.name.as_str()).collect();
            names.sort_unstable();
            names.join(", ")
        };
        let chosen = match name {
            Some(name) => Some(find(name).ok_or_else(|| {
                Failure::new(Code::NoSuchTemplate, format!("no template of this name, there are: {}", names()))
            })?),
            None if with_tools => find("tool_use").or_else(|| find(DEFAULT)),
            None => find(DEFAULT),
        };
        let Some(chosen) = chosen else {
            return Err(Failure::new(
                Code::NoTemplate,
                if self.templates.is_empty() {
                    "this model has no chat template; use /v1/completions with a prompt of your own"
                        .to_owned()
                } else {
                    format!("of several chat templates none is the default; name one: {}", names())
                },
            ));
        };
        chosen.template.as_ref().map_err(|e| Failure::new(Code::TemplateFailed, e.clone()))
    }

    /// The text, and where in it the blocks `{% generation %}` begin and end, in bytes.
    pub fn render(&self, input: &str, now: i64) -> Result<(String, Vec<(usize, usize)>), Failure> {
        let input = parse_json(input).map_err(|e| Failure::new(Code::InvalidInput, message(e)))?;
        let Value::Dict(input) = input else {
            return Err(Failure::new(Code::InvalidInput, "template input: expected an object"));
        };
        let get = |name: &str| input.get_name(name).cloned();
        let tools = get("tools").unwrap_or(Value::None);
        let name = get("template");
        let name = name.as_ref().and_then(|name| name.as_str());
        let template = self.choose(name, !matches!(tools, Value::None))?;
        let mut variables = jinja::Dict::default();
        for (name, text) in &self.tokens {
            variables.set(name, Value::str(text.as_str()));
        }
        variables.set("messages", get("messages").unwrap_or_else(Value::empty_list));
        variables.set("tools", tools);
        variables.set("documents", get("documents").unwrap_or(Value::None));
        variables.set(
            "add_generation_prompt",
            get("add_generation_prompt").unwrap_or(Value::Bool(false)),
        );
        match get("extra") {
            None | Some(Value::None) => {}
            Some(Value::Dict(extra)) => {
                for (name, value) in extra.iter() {
                    variables.set(name.as_str().unwrap_or(""), value.clone());
                }
            }
            Some(other) => {
                let found = other.type_name();
                return Err(Failure::new(
                    Code::InvalidInput,
                    format!("extra: expected an object, found {found}"),
                ));
            }
        }
        template.render(variables, now).map_err(|error| match error {
            jinja::Error::Raised(text) => Failure::new(Code::TemplateRaised, text),
            jinja::Error::Failed(text) => Failure::new(Code::TemplateFailed, text),
        })
    }
}

fn broken(what: &str, why: &str) -> Failure {
    Failure::new(Code::InvalidFile, format!("{what}: {why}"))
}

/// One template, or a list of named ones.
fn sources_of(value: &Value<'_>, what: &str) -> Result<Vec<(String, String)>, Failure> {
    match value {
        Value::Str(source) => Ok(vec![(DEFAULT.to_owned(), source.to_string())]),
        Value::List(entries) => entries
            .iter()
            .map(|entry| {
                let text = |name| field(entry, name).and_then(|v| v.as_str().map(str::to_owned));
                match (text("name"), text("template")) {
                    (Some(name), Some(source)) => Ok((name, source)),
                    _ => Err(broken(what, "chat_template: expected entries of name and template")),
                }
            })
            .collect(),
        Value::Dict(entries) => entries
            .iter()
            .map(|(name, source)| match (name.as_str(), source.as_str()) {
                (Some(name), Some(source)) => Ok((name.to_owned(), source.to_owned())),
                _ => Err(broken(what, "chat_template: expected a template for each name")),
            })
            .collect(),
        other => Err(broken(
            what,
            &format!("chat_template: expected a text or a list, found {}", other.type_name()),
        )),
    }
}
