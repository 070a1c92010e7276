"""The requests: OpenAI's fields, and ours beside them. What is not supported is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from atlas_memory.serving.sampling import Sampling


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("the text holds half a character (a lone surrogate)") from error
    return text


Text = Annotated[str, AfterValidator(_whole)]
Name = Annotated[str, Field(max_length=200), AfterValidator(_whole)]
Stop = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_whole)]
Id = Annotated[int, Field(ge=-(2**63), lt=2**63)]
# Fields of OpenAI's API that this server knows with one meaning only: that nothing is asked.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "suffix": (None, ""),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "response_format": (None, {"type": "text"}),
    "store": (None, False),
}
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[str, Field(pattern="^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]


class Strict(BaseModel):
    """A number is no text, and what is not known is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        for name, meanings in NEUTRAL.items():
            if name in fields and fields[name] not in meanings:
                raise ValueError(f"{name} is not supported by this server; leave it out")
        return {name: value for name, value in fields.items() if name not in NEUTRAL}


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: bool = False


class Asked(Strict):
    """What both kinds of completions have in common. memory: the id of one to go on from."""

    model: Name | None = None
    memory: Name | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=1_000)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Name | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        given = self.stop or ()
        return (given,) if isinstance(given, str) else tuple(given)

    @property
    def with_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, choice: int) -> Sampling:
        """OpenAI's defaults; every choice of one request has its own seed."""
        return Sampling(
            temperature=1.0 if self.temperature is None else _drawn(self.temperature),
            top_k=self.top_k or 0,
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            seed=None if self.seed is None else self.seed + choice,
            bias=tuple((int(token), by) for token, by in (self.logit_bias or {}).items()),
            presence=self.presence_penalty or 0.0,
            frequency=self.frequency_penalty or 0.0,
        )

    @property
    def top(self) -> int | None:
        """How many of the most probable tokens are told with each; None: no scores are."""
        return None

    @property
    def tries(self) -> int:
        """Answers that are made for each prompt, of which the best `n` are given."""
        return self.n or 1

    @property
    def echoes(self) -> bool:
        return False


def _drawn(temperature: float) -> float:
    """Below a hundredth a draw is the most probable token, and a division may overflow."""
    return temperature if temperature >= 0.01 else 0.0


class CompletionRequest(Asked):
    prompt: Text | list[Text] | list[Id] | list[list[Id]] = ""
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.tries < (self.n or 1):
            raise ValueError(f"best_of={self.best_of} is less than n={self.n}")
        if self.stream and self.tries > (self.n or 1):
            raise ValueError("best_of: the best answer is known at the end, so leave out stream")
        return self

    @property
    def top(self) -> int | None:
        return self.logprobs

    @property
    def tries(self) -> int:
        return self.best_of or self.n or 1

    @property
    def echoes(self) -> bool:
        return bool(self.echo)

    @property
    def prompts(self) -> list[str | list[int]]:
        given: Any = self.prompt
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            return [given]
        return list(given)


class Part(Strict):
    type: Annotated[str, Field(pattern="^text$")]
    text: Text


class Message(Strict):
    role: Annotated[str, Field(pattern="^[a-z]{1,20}$")]
    content: Text | list[Part]
    name: Name | None = None

    def plain(self) -> dict[str, str]:
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return {"role": self.role, "content": text}


class ChatRequest(Asked):
    messages: Annotated[list[Message], Field(min_length=1, max_length=1000)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: set logprobs to true as well")
        return self

    @property
    def top(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None


class MemoryRequest(Strict):
    """text: what to read. memory: the id of one to read on from. stream: tell how far it is."""

    text: Text
    name: Name | None = None
    memory: Name | None = None
    stream: bool | None = None


class ForkRequest(Strict):
    """text: what the fork reads on, if anything."""

    text: Text = ""
    name: Name | None = None
    stream: bool | None = None


class Upload(Strict):
    """name: of a memory that comes as a file; None: what its file says."""

    name: Name | None = None


class TokenizeRequest(Strict):
    text: Text
    model: Name | None = None
