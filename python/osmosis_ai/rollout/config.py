"""Configs of workflows and graders: overridden from TOML, copied for every execution."""

from __future__ import annotations

import copy
import difflib
from typing import Any, Generic, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from osmosis_ai.rollout.types import BaseConfig

ConfigT = TypeVar("ConfigT", bound=BaseConfig)


class ConfigCopies(Generic[ConfigT]):
    """Hands out deep copies of one config.

    A field that can't be copied (a client, a lock) is shared by all copies instead.
    """

    def __init__(self, config: ConfigT) -> None:
        self._config = config
        self._shared: set[str] = set()

    def make(self) -> ConfigT:
        """A copy for one execution."""
        if not self._shared:
            try:
                return self._config.model_copy(deep=True)
            except Exception:
                # Which field it was is found below, once.
                pass
        made = self._config.model_copy()
        for name, value in _values(self._config).items():
            if name not in self._shared:
                try:
                    # Not `setattr`: that would validate, and may convert, what is valid already.
                    _put(made, name, copy.deepcopy(value))
                except Exception:
                    self._shared.add(name)
        return made


class InvalidConfigError(Exception):
    """Overrides that the config's own model refuses: one line per field."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


def override(
    config: ConfigT | None, model: type[ConfigT], overrides: dict[str, Any], default_name: str
) -> tuple[ConfigT, list[str]]:
    """Applies a TOML table to a config, or builds one from `model` when there is none.

    Returns the config and a remark for each key that is not a field. Raises `InvalidConfigError`.
    """
    if config is not None:
        model = type(config)
        data = _merge(config, overrides)
    else:
        name = model.model_fields.get("name")
        data = {"name": default_name} if name is not None and name.is_required() else {}
        data.update(overrides)
    try:
        made = model.model_validate(data)
    except ValidationError as error:
        raise InvalidConfigError(
            [
                f"{'.'.join(str(part) for part in detail['loc']) or model.__name__}: "
                f"{detail['msg']}"
                for detail in error.errors(include_url=False, include_input=False)
            ]
        ) from None
    return made, _remarks(model, config, overrides)


def config_class_of(cls: type, generic: type, default: type[ConfigT]) -> type[ConfigT]:
    """The config class in `class X(generic[Config])`, searched through the bases of `cls`."""
    for base in cls.__mro__:
        for parent in getattr(base, "__orig_bases__", ()):
            if get_origin(parent) is generic:
                for argument in get_args(parent):
                    if isinstance(argument, type) and issubclass(argument, default):
                        return argument
    return default


def _values(config: BaseModel) -> dict[str, Any]:
    return {**config.__dict__, **(config.__pydantic_extra__ or {})}


def _put(config: BaseModel, name: str, value: Any) -> None:
    if name in config.__dict__:
        config.__dict__[name] = value
    elif config.__pydantic_extra__ is not None:
        config.__pydantic_extra__[name] = value


def _merge(config: BaseModel, overrides: dict[str, Any]) -> dict[str, Any]:
    values = _values(config)
    for key, value in overrides.items():
        current = values.get(key)
        if isinstance(current, BaseModel) and isinstance(value, dict):
            value = _merge(current, value)
        values[key] = value
    # Validation looks for a field's alias when it has one.
    fields = type(config).model_fields
    return {_input_name(fields.get(key), key): value for key, value in values.items()}


def _input_name(field: Any, name: str) -> str:
    alias = getattr(field, "validation_alias", None) or getattr(field, "alias", None)
    return alias if isinstance(alias, str) else name


def _remarks(
    model: type[BaseConfig], config: BaseConfig | None, overrides: dict[str, Any]
) -> list[str]:
    known = set(model.model_fields)
    if config is not None:
        known |= set(config.__pydantic_extra__ or {})
    remarks = []
    for key in overrides:
        if key not in known and len(known) > len(BaseConfig.model_fields) + 1:
            near = difflib.get_close_matches(key, sorted(known), n=1)
            guess = f"; did you mean `{near[0]}`?" if near else ""
            remarks.append(
                f"`{key}` is not a field of `{model.__name__}`, kept as an extra field{guess}"
            )
    return remarks
