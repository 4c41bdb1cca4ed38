//! How deep a template's syntax tree may be. The parser of the library recurses into it, and so do
//! its drop and our evaluation, some for each operator of a chain and each `elif`. So its tokens are
//! counted first, as the parser will see them: this is all that protects the stack from a template.

use minijinja::machinery::{tokenize, Token};
use minijinja::syntax::SyntaxConfig;

use super::{fail, Result};

/// Blocks inside blocks, each `elif` as one inside the branch before it.
const MAX_BLOCKS: usize = 200;
/// Operators, brackets and the like that may stand one inside the other in one tag.
const MAX_OPERATORS: usize = 600;

/// Of a template. Each becomes a hundred bytes of the tree or so, which is kept as long as the
/// template is; those of models have a few thousand.
const MAX_TOKENS: usize = 60_000;

/// An open bracket, or the tag itself.
#[derive(Default)]
struct Level {
    /// What the element that is being read has of its own, and its deepest bracket.
    own: usize,
    deepest: usize,
    /// The deepest of the elements before it.
    before: usize,
}

impl Level {
    fn end_element(&mut self) {
        self.before = self.before.max(self.own + self.deepest);
        (self.own, self.deepest) = (0, 0);
    }
}

/// The depth of an expression, at most: an operator is taken to have all others of its element
/// below it.
struct Depth {
    levels: Vec<Level>,
}

impl Depth {
    fn new() -> Depth {
        Depth { levels: vec![Level::default()] }
    }

    fn top(&mut self) -> &mut Level {
        if self.levels.is_empty() {
            self.levels.push(Level::default());
        }
        let last = self.levels.len() - 1;
        &mut self.levels[last]
    }

    fn open(&mut self) -> Result<()> {
        self.levels.push(Level::default());
        self.check(self.levels.len())
    }

    fn close(&mut self) -> Result<()> {
        let mut level = self.levels.pop().unwrap_or_default();
        level.end_element();
        let inside = level.before + 1;
        let outer = self.top();
        outer.deepest = outer.deepest.max(inside);
        self.operator()
    }

    fn operator(&mut self) -> Result<()> {
        let top = self.top();
        top.own += 1;
        let depth = top.own + top.deepest;
        self.check(depth)
    }

    fn check(&self, depth: usize) -> Result<()> {
        if depth > MAX_OPERATORS {
            fail!("syntax error: an expression is nested deeper than {MAX_OPERATORS}");
        }
        Ok(())
    }
}

/// What is open at some place: for each block how many branches it has so far.
#[derive(Default)]
struct Blocks {
    branches: Vec<usize>,
    depth: usize,
}

impl Blocks {
    fn keyword(&mut self, word: &str) -> Result<()> {
        match word {
            "if" | "for" | "with" | "set" | "macro" | "call" | "filter" | "block"
            | "autoescape" => {
                self.branches.push(1);
                self.depth += 1;
            }
            "elif" => {
                if let Some(branches) = self.branches.last_mut() {
                    *branches += 1;
                }
                self.depth += 1;
            }
            word if word.starts_with("end") => {
                self.depth -= self.branches.pop().unwrap_or(0).min(self.depth);
            }
            _ => {}
        }
        if self.depth > MAX_BLOCKS {
            fail!("syntax error: blocks and elif branches are nested deeper than {MAX_BLOCKS}");
        }
        Ok(())
    }

    /// A `set` with a value is no block.
    fn not_a_block(&mut self) {
        self.branches.pop();
        self.depth -= 1;
    }
}

/// Fails where the tree would be deeper than its bounds.
pub fn check_depth(source: &str, syntax: SyntaxConfig) -> Result<()> {
    let mut blocks = Blocks::default();
    let mut depth = Depth::new();
    let mut is_first = false;
    // In a tag `set` whose value has not come yet.
    let mut is_set = false;
    for (count, token) in tokenize(source, false, syntax).enumerate() {
        if count == MAX_TOKENS {
            fail!("syntax error: more than {MAX_TOKENS} tokens");
        }
        // The parser meets the same error here, and says it better.
        let Ok((token, _)) = token else { return Ok(()) };
        match token {
            Token::BlockStart | Token::VariableStart => depth = Depth::new(),
            Token::Ident(word) if is_first => {
                blocks.keyword(word)?;
                is_set = word == "set";
            }
            Token::Assign if is_set && depth.levels.len() == 1 => {
                blocks.not_a_block();
                is_set = false;
            }
            Token::Comma | Token::Colon => depth.top().end_element(),
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => depth.open()?,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => depth.close()?,
            Token::Ident("and" | "or" | "not" | "in" | "is" | "if" | "else") => depth.operator()?,
            Token::Ident(_) | Token::Str(_) | Token::String(_) => {}
            Token::Int(_) | Token::Int128(_) | Token::Float(_) => {}
            Token::TemplateData(_) | Token::VariableEnd | Token::BlockEnd => {}
            _ => depth.operator()?,
        }
        is_first = matches!(token, Token::BlockStart);
    }
    Ok(())
}
