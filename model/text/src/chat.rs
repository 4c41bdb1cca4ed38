use crate::{Code, Failure};
pub struct ChatTemplate;
impl ChatTemplate {
    pub fn new(_: Option<&str>, _: Option<&str>, _: Option<&str>, _: Option<&str>) -> Result<ChatTemplate, Failure> { Ok(ChatTemplate) }
    pub fn exists(&self) -> bool { false }
    pub fn render(&self, _: &str, _: Option<i64>) -> Result<String, Failure> { Err(Failure::new(Code::NoTemplate, "no template")) }
}
