# One image for the services of compose.yaml: code location, daemon, Dagster's web server, MLflow.
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY eval_dagster eval_dagster
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
COPY requirements.lock /tmp/requirements.lock
COPY --from=build /wheels /tmp/wheels
# Extras of the package, and packages beside it: EXTRAS=metrics,postgres,s3,transformers,kubernetes PACKAGES=boto3
ARG EXTRAS=metrics,postgres,s3,transformers
ARG PACKAGES=""
RUN pip install --no-cache-dir --constraint /tmp/requirements.lock "$(echo /tmp/wheels/*.whl)[$EXTRAS]" $PACKAGES \
    && rm -r /tmp/wheels /tmp/requirements.lock

# The folders that volumes are mounted on belong to the user, and so does a new volume.
RUN useradd --uid 10001 --create-home evals \
    && install --directory --owner evals --group evals /var/lib/evals /var/lib/mlflow
COPY deploy/dagster.yaml deploy/workspace.yaml /opt/dagster/
ENV DAGSTER_HOME=/opt/dagster \
    EVAL_DAGSTER_CONFIG=/project/evals.yaml \
    EVAL_DAGSTER_HOME=/var/lib/evals \
    HF_HOME=/var/lib/evals/huggingface \
    PYTHONUNBUFFERED=1
WORKDIR /project
USER 10001
CMD ["eval-dagster", "--help"]
