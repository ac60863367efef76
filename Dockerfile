# The command with the CPU build of torch, run by a user without rights. Build: docker build -t llm-perf-opt .
FROM python:3.12.12-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/llm-perf-opt \
 && /opt/llm-perf-opt/bin/pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu \
 && /opt/llm-perf-opt/bin/pip install --no-cache-dir ".[trace]"

FROM python:3.12.12-slim-bookworm
RUN useradd --create-home --uid 10001 perf
COPY --from=build /opt/llm-perf-opt /opt/llm-perf-opt
ENV PATH=/opt/llm-perf-opt/bin:$PATH
USER perf
WORKDIR /data
ENTRYPOINT ["llm-perf-opt"]
CMD ["--help"]
