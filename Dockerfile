# The image: the locked dependencies that the service needs at run time, and the service. Runs with a read-only root.

FROM python:3.11-slim AS build
WORKDIR /src
# Everything is fetched once, each file checked against its hash; what follows installs from these files only.
COPY requirements.lock ./
RUN python -m pip wheel --no-cache-dir --no-deps --require-hashes --requirement requirements.lock --wheel-dir /wheels
COPY pyproject.toml README.md ./
COPY app ./app
RUN python -m venv /opt/leeboard \
 && /opt/leeboard/bin/pip install --no-cache-dir --no-compile --no-index --find-links /wheels .

FROM python:3.11-slim
COPY --from=build /opt/leeboard /opt/leeboard
ENV PATH=/opt/leeboard/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
EXPOSE 8080 8888
ENTRYPOINT ["leeboard"]
CMD ["serve"]
