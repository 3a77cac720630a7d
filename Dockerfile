# The lessons in a container:
#
#   docker build -t viakit . && docker run --rm -p 8888:8888 viakit
#   docker run --rm viakit doctor          what this container lacks
#
# Hosts of a testbed are network namespaces. Docker's default profiles refuse them: give --security-opt seccomp=unconfined
# --security-opt apparmor=unconfined --security-opt systempaths=unconfined to have them. All that runs on one host works without.
FROM python:3.12-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps -w /wheels .

FROM python:3.12-slim-bookworm
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/viakit-*.whl)[lab]" && useradd --create-home student
USER student
WORKDIR /home/student
EXPOSE 8888
ENTRYPOINT ["viakit"]
CMD ["lab", "--no-browser", "--ip", "0.0.0.0", "--port", "8888"]
