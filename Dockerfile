# Serve a model:  docker build -t anytime .
#                 docker run -p 8000:8000 -v $PWD/runs/a:/model:ro -v $PWD/secret:/run/secrets/token:ro anytime /model --token-file /run/secrets/token
# Without arguments it serves the embedded model, without a token, to anyone who can reach the port.
FROM python:3.12-slim AS build
# For instance an index of torch wheels without CUDA, which make the image a tenth as large.
ARG PIP_OPTIONS=""
WORKDIR /src
COPY pyproject.toml README.md CHANGELOG.md LICENSE constraints.txt ./
COPY src src
# hadolint ignore=SC2086
RUN python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir $PIP_OPTIONS -c constraints.txt ".[cli,serve,grpc,onnx]"

FROM python:3.12-slim
COPY --from=build /venv /venv
RUN useradd --create-home --uid 10001 anytime
USER 10001
WORKDIR /home/anytime
ENV PATH=/venv/bin:$PATH OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
EXPOSE 8000 8001
# Stops as Kubernetes does: not ready any more, admitted requests answered, exit code 0.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=2)"]
ENTRYPOINT ["anytime", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["--no-auth"]
