# The image: the locked dependencies that the service needs at run time, and the service, by the steps of `make`. Nothing
# in it is written to while it runs, and nothing of a shell is used.
# To publish the image, name the base by its digest: --build-arg BASE=python:3.11-slim-bookworm@sha256:...
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
# Everything is fetched once, each file checked against its hash; what follows installs from these files only.
COPY requirements.lock ./
RUN python -m pip wheel --no-cache-dir --no-deps --require-hashes --requirement requirements.lock --wheel-dir /wheels
COPY pyproject.toml README.md LICENSE ./
COPY app ./app
# Compiled here, since nothing can be kept at run time: each start would cost two and a half seconds of a core more.
RUN python -m venv --without-pip /opt/leeboard \
 && python -m pip --python /opt/leeboard/bin/python install --no-cache-dir --compile --no-index --find-links /wheels '.[server]'

FROM ${BASE}
LABEL org.opencontainers.image.title="Leeboard" \
      org.opencontainers.image.description="Queues, gangs and GPU placement beside a stock kube-scheduler" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/leeboard /opt/leeboard
ENV PATH=/opt/leeboard/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# What /version says. `make image` passes it; without it the commit is not known.
ARG GIT_COMMIT=
LABEL org.opencontainers.image.revision=${GIT_COMMIT}
ENV LEEBOARD_GIT_COMMIT=${GIT_COMMIT}
USER 65532:65532
EXPOSE 8080 8081 8082 8888 9443 9444
ENTRYPOINT ["leeboard"]
CMD ["serve"]
