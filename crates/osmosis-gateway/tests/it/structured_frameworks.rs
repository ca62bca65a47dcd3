//! Agent frameworks that ask for structured replies, each with its own packages and its own requests. As in
//! `structured.rs`, only the grammar can make the replies right.

use std::process::Stdio;

use camino::Utf8PathBuf;
use osmosis_testkit::python_environment;
use tokio::process::Command;

use crate::embedded::records;
use crate::fixture::House;
use crate::structured::house;

async fn run(house: &House, python: Utf8PathBuf, program: &str) {
    // In a file, because smolagents reads the source of its tools.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("program.py");
    std::fs::write(&file, program).unwrap();
    let output = Command::new(python)
        .arg(&file)
        .env("OPENAI_BASE_URL", house.gateway.url())
        .env("OPENAI_API_KEY", house.session.key())
        .env("OPENAI_AGENTS_DISABLE_TRACING", "1")
        .env("NO_PROXY", "*")
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(said.trim_end().ends_with("all is well"), "{complained}");
}

/// Every answered call, and how many of them followed a grammar.
fn constrained_calls(house: &House) -> (usize, usize) {
    let calls = house.store.calls();
    let constrained = calls.iter().filter(|call| {
        records(call)
            .iter()
            .all(|record| record.constraint.is_some())
    });
    (calls.len(), constrained.count())
}

const AGENTS: &str = r#"
import asyncio
from typing import Literal
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

class Animal(BaseModel):
    kind: Literal["cat", "dog"]
    legs: int = Field(ge=0, le=9)

looked = []

@function_tool
def look(where: Literal["up", "down"]) -> str:
    looked.append(where)
    return "nothing"

async def main():
    async with AsyncOpenAI(max_retries=0) as client:
        for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
            model = kind(model="m", openai_client=client)
            agent = Agent(name="solver", model=model, output_type=Animal)
            result = await Runner.run(agent, "Which?")
            assert isinstance(result.final_output, Animal), result
            result = Runner.run_streamed(agent, "Which?")
            async for _ in result.stream_events():
                pass
            assert isinstance(result.final_output, Animal), result
            forced = Agent(name="forced", model=model, tools=[look], output_type=Animal,
                model_settings=ModelSettings(tool_choice="look"))
            result = await Runner.run(forced, "Which?", max_turns=50)
            assert isinstance(result.final_output, Animal), result
            assert looked and set(looked) <= {"up", "down"}, looked
            looked.clear()
asyncio.run(main())
print("all is well")
"#;

#[tokio::test]
async fn an_agent_of_the_agents_sdk_has_an_output_type() {
    let house = house().await;
    run(&house, python_environment::python(), AGENTS).await;
    let (calls, constrained) = constrained_calls(&house);
    assert!(calls >= 8, "{calls}");
    assert_eq!(constrained, calls);
}

const STRANDS: &str = r#"
import os
from typing import Literal
from pydantic import BaseModel, Field
from strands import Agent
from strands.models.openai import OpenAIModel

class Animal(BaseModel):
    kind: Literal["cat", "dog"]
    legs: int = Field(ge=0, le=9)

client = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"], "max_retries": 0}
model = OpenAIModel(client_args=client, model_id="m")
agent = Agent(model=model, structured_output_model=Animal, callback_handler=None)
result = agent("Which?")
assert isinstance(result.structured_output, Animal), result
print("all is well")
"#;

#[tokio::test]
async fn an_agent_of_strands_has_a_structured_output_model() {
    let house = house().await;
    run(&house, python_environment::strands_python(), STRANDS).await;
    let (_, constrained) = constrained_calls(&house);
    assert!(constrained >= 1);
}

const LANGCHAIN: &str = r#"
from typing import Literal
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

class Animal(BaseModel):
    """An animal."""
    kind: Literal["cat", "dog"]
    legs: int = Field(ge=0, le=9)

class Look(BaseModel):
    """Looks around."""
    where: Literal["up", "down"]

for responses in (False, True):
    model = ChatOpenAI(model="m", max_retries=0, use_responses_api=responses)
    for method in ("json_schema", "function_calling"):
        for strict in (None, True, False):
            asking = model.with_structured_output(Animal, method=method, strict=strict)
            assert isinstance(asking.invoke("Which?"), Animal)
    asking = model.with_structured_output(Animal, tools=[Look], strict=True, include_raw=True)
    for _ in range(8):
        reply = asking.invoke("Which?")
        if reply["parsed"] is None:
            looked = [Look.model_validate(call["args"]) for call in reply["raw"].tool_calls]
            assert looked and reply["parsing_error"] is None, reply
        else:
            assert isinstance(reply["parsed"], Animal), reply
    for choice in ("any", "Look"):
        reply = model.bind_tools([Animal, Look], tool_choice=choice).invoke("Which?")
        for call in reply.tool_calls:
            (Look if call["name"] == "Look" else Animal).model_validate(call["args"])
        assert reply.tool_calls, reply
    assert isinstance([*model.with_structured_output(Animal).stream("Which?")][-1], Animal)
print("all is well")
"#;

#[tokio::test]
async fn langchain_has_structured_output_by_schema_and_by_call() {
    let house = house().await;
    run(&house, python_environment::structured_python(), LANGCHAIN).await;
    let (calls, constrained) = constrained_calls(&house);
    assert_eq!(calls, 2 * (6 + 8 + 2 + 1));
    assert_eq!(constrained, calls);
}

const PYDANTIC_AI: &str = r#"
import asyncio
from typing import Literal
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

class Animal(BaseModel):
    """An animal."""
    kind: Literal["cat", "dog"]
    legs: int = Field(ge=0, le=9)

class Plant(BaseModel):
    """A plant."""
    leaves: int = Field(ge=0, le=99)
    nearby: list[Animal] = Field(max_length=2)

async def main():
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        model = kind("m")
        for output_type in (Animal, Plant, [Animal, Plant], NativeOutput(Animal), NativeOutput([Animal, Plant]),
                ToolOutput(Animal, name="found", strict=False), Literal["yes", "no"], bool):
            agent = Agent(model, output_type=output_type)
            result = await agent.run("Which?")
            assert isinstance(result.output, (Animal, Plant, bool)) or result.output in ("yes", "no"), result
        agent = Agent(model, output_type=Animal)
        looked = []
        @agent.tool_plain
        def look(where: Literal["up", "down"]) -> str:
            """Looks around."""
            looked.append(where)
            return "nothing"
        for _ in range(8):
            result = await agent.run("Which?")
            assert isinstance(result.output, Animal), result
        assert looked and set(looked) <= {"up", "down"}, looked
        async with Agent(model, output_type=Animal).run_stream("Which?") as streamed:
            assert isinstance(await streamed.get_output(), Animal)
asyncio.run(main())
print("all is well")
"#;

#[tokio::test]
async fn agents_of_pydantic_ai_have_output_types() {
    let house = house().await;
    run(&house, python_environment::structured_python(), PYDANTIC_AI).await;
    let (calls, constrained) = constrained_calls(&house);
    assert!(calls > 2 * (8 + 8 + 1), "{calls}");
    assert_eq!(constrained, calls);
}

const SMOLAGENTS: &str = r#"
import os
from smolagents import LogLevel, OpenAIModel, Tool, ToolCallingAgent, tool

looked = []

@tool
def look(where: str, far: bool = False) -> str:
    """Looks around.

    Args:
        where: up or down (choices: ["up", "down"])
        far: whether to look far
    """
    looked.append(where)
    return "nothing"

class Answer(Tool):
    name = "final_answer"
    description = "Answers."
    inputs = {
        "kind": {"type": "string", "enum": ["cat", "dog"], "description": "which"},
        "legs": {"type": "integer", "minimum": 0, "maximum": 9, "description": "how many"},
    }
    output_type = "object"

    def forward(self, kind: str, legs: int):
        return {"kind": kind, "legs": legs}

for stream in (False, True):
    model = OpenAIModel("m", api_base=os.environ["OPENAI_BASE_URL"], client_kwargs={"max_retries": 0},
        parallel_tool_calls=False)
    for _ in range(6):
        agent = ToolCallingAgent(tools=[look, Answer()], model=model, max_steps=30, stream_outputs=stream,
            verbosity_level=LogLevel.OFF)
        agent.prompt_templates["system_prompt"] = "Use a tool."
        answer = agent.run("Which?")
        assert answer["kind"] in ("cat", "dog") and 0 <= answer["legs"] <= 9, answer
        for step in agent.memory.steps[1:]:
            assert step.error is None, step
assert looked and set(looked) <= {"up", "down"}, looked
print("all is well")
"#;

#[tokio::test]
async fn tool_agents_of_smolagents_call_their_tools() {
    let house = house().await;
    run(&house, python_environment::structured_python(), SMOLAGENTS).await;
    let (calls, constrained) = constrained_calls(&house);
    assert!(calls > 12, "{calls}");
    assert_eq!(constrained, calls);
}
