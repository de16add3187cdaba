"""From template to WGSL: one sandboxed jinja environment for each op, a generated prologue, and the way back.

A template sees its launch's `context` and two names more, `dialect` ("naga" or "tint") and `subgroup_size`
(0 without subgroups), and may include files of its own folder. The prologue declares what the launch
declares, so a template writes neither `enable` nor `@binding`:

    struct Params { … }   params.<name> for each of the launch's params, and params.workgroups
    var<storage> …        one array for each binding
    fn workgroup_index(workgroup_id: vec3<u32>) -> u32

A template's entry point is `main`, and it begins by leaving surplus workgroups, which folding leaves
over when a launch has more than 65535:

    @compute @workgroup_size(64)
    fn main(@builtin(workgroup_id) workgroup_id: vec3<u32>, …) {
      let group = workgroup_index(workgroup_id);
      if (group >= params.workgroups) { return; }
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources.abc import Traversable

import jinja2
import jinja2.sandbox
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

from oplet.capabilities import Capabilities
from oplet.errors import ShaderError
from oplet.shader import Shader, prologue
from oplet.variant import Binding, ContextValue

_MARK = re.compile(r"//@\x1f(.+?):(\d+)$")


class _LineMarks(Extension):
    """Ends every literal template line with an invisible comment that tells its file and line.

    `render` cuts the marks off again. jinja has no source map of its own.
    """

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        for token in stream:
            if token.type == "data" and "\n" in token.value:
                *lines, rest = token.value.split("\n")
                # stream.name loses the loader's prefix; filename is the real path.
                marked = "".join(
                    f"{line}//@\x1f{stream.filename or stream.name}:{token.lineno + i}\n"
                    for i, line in enumerate(lines)
                )
                token = Token(token.lineno, "data", marked + rest)
            yield token


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Includes stay inside the folder of the plugin that writes them."""

    def join_path(self, template: str, parent: str) -> str:
        return f"{parent.partition('/')[0]}/{template}"


class Templates:
    """The templates of one op: a folder for each plugin, by its import name, and core's own as `oplet`."""

    def __init__(self, folders: Mapping[str, Traversable]) -> None:
        self._folders = {**folders, "oplet": importlib.resources.files("oplet") / "wgsl"}
        self._environment = _Environment(
            loader=jinja2.FunctionLoader(self._load),
            undefined=jinja2.StrictUndefined,
            autoescape=False,  # WGSL, not HTML
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            extensions=[_LineMarks],
        )

    def _load(self, name: str) -> tuple[str, str, None] | None:
        module, _, path = name.partition("/")
        parts = path.split("/")
        if module not in self._folders or any(part in ("", ".", "..") or "\\" in part for part in parts):
            return None
        file = self._folders[module].joinpath(*parts)
        if not file.is_file():
            return None
        return file.read_text(encoding="utf-8"), str(file), None

    def render(
        self,
        module: str,
        template: str,
        *,
        context: Mapping[str, ContextValue],
        bindings: Sequence[Binding],
        params: Mapping[str, str],
        caps: Capabilities,
    ) -> Shader:
        """Renders a template behind its prologue.

        Args:
            module: import name of the package folder whose templates they are.
            template: its path in their folder.
            params: WGSL type of each param by name, `FOLD_PARAMS` included.

        Raises:
            ShaderError: at the template's file and line.
        """
        variables = {**context, "dialect": caps.dialect, "subgroup_size": caps.subgroup_size}
        try:
            body = self._environment.get_template(f"{module}/{template}").render(variables)
        except jinja2.TemplateNotFound as error:
            path, number = _raised_at(error) or (template, 0)  # an include, or the launch that names it
            where = f"{path}:{number}: " if number else ""
            missing = (error.name or template).removeprefix(f"{module}/")
            raise ShaderError(
                f"{module}: {where}template {missing!r} does not exist\nname a file in {self._folders[module]}",
                template=path,
                line=number,
            ) from error
        except jinja2.TemplateSyntaxError as error:
            raise _template_error(
                module, error.filename or template, error.lineno, error.message or "syntax error"
            ) from error
        except Exception as error:  # a template may run any expression, so may raise anything
            path, number = _raised_at(error) or (template, 0)
            raise _template_error(module, path, number, f"{type(error).__name__}: {error}") from error
        lines = prologue(caps, bindings, params)
        origins: list[tuple[str, int] | None] = [None] * len(lines)
        for line in body.split("\n"):
            mark = _MARK.search(line)
            origins.append((mark[1], int(mark[2])) if mark else origins[-1])
            lines.append(line[: mark.start()] if mark else line)
        return Shader("\n".join(lines), tuple(origins))


def _template_error(module: str, path: str, line: int, message: str) -> ShaderError:
    return ShaderError(
        f"{module}: {path}:{line}: {message}\nmend the template, or the context that its launch gives",
        template=path,
        line=line,
    )


def _raised_at(error: BaseException) -> tuple[str, int] | None:
    """The template line in a traceback: jinja rewrites its frames to point at templates."""
    found, frame = None, error.__traceback__
    while frame is not None:
        path = frame.tb_frame.f_code.co_filename
        if path.endswith(".jinja"):
            found = path, frame.tb_lineno
        frame = frame.tb_next
    return found
