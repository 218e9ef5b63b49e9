"""Plugins of Berth in Python.

GPUModel runs pods that have the label example.com/gpu-model only on nodes that have it with the same value. FewestPods
prefers nodes with few pods.
"""

import argparse
import concurrent.futures
import os

import grpc
from berth.plugin.v1 import plugin_pb2, plugin_pb2_grpc

GPU_MODEL = "example.com/gpu-model"


class Node:
    """What the plugins want to know of a node."""

    model, places, pods = None, 0, 0


class Plugins(plugin_pb2_grpc.PluginServiceServicer):
    def Describe(self, request, context):
        return plugin_pb2.DescribeResponse(plugins=[
            plugin_pb2.PluginDescription(name="GPUModel", filters=True),
            plugin_pb2.PluginDescription(
                name="FewestPods", scores=True, depends=plugin_pb2.Dependencies(requested=True)),
        ])

    def Judge(self, requests, context):
        kinds, nodes = {}, {}  # by id, for as long as this stream is open; of a kind, the model that it wants
        for request in requests:
            # What is forgotten goes first: its ids can be those of others in the same request.
            for node_id in request.forgotten_nodes:
                del nodes[node_id]
            for kind_id in request.forgotten_kinds:
                del kinds[kind_id]
            for kind in request.kinds:
                kinds[kind.id] = kind.labels.get(GPU_MODEL)
            for told in request.nodes:
                node = nodes.setdefault(told.id, Node())
                if told.HasField("spec"):  # else it is what it was
                    node.model = told.spec.labels.get(GPU_MODEL)
                    node.places = told.spec.allocatable.get("pods", 0)
                node.pods = told.pod_count
            yield plugin_pb2.JudgeResponse(id=request.id, answers=[
                answer(question, kinds[question.kind], [nodes[n] for n in question.nodes])
                for question in request.questions
            ])


def answer(question, wanted, nodes):
    out = plugin_pb2.Answer()
    if "GPUModel" in question.filters and wanted is not None:
        out.refusals.add(plugin="GPUModel", reason="node(s) had no GPU of model " + wanted, unresolvable=True)
        out.verdicts.extend(0 if node.model == wanted else 1 for node in nodes)
    for name in question.scores:
        if name == "FewestPods":
            out.scores.add(scores=[score(node) for node in nodes])
    return out


def score(node):
    # 0 to 100, as it counts. Of a plugin that is described with a normalization it is 0 to 2147483647, and Berth brings it to 0 to 100.
    return max(0, 100 * (node.places - node.pods) // node.places) if node.places else 0


def main():
    parser = argparse.ArgumentParser()
    socket = os.environ.get("BERTH_PLUGIN_SOCKET")  # there is one if Berth runs this process
    parser.add_argument("--listen", default="unix://" + socket if socket else "127.0.0.1:7200", help="host:port, or unix:///path")
    listen = parser.parse_args().listen
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=16), options=[
        ("grpc.max_receive_message_length", 16 << 20),
    ])
    plugin_pb2_grpc.add_PluginServiceServicer_to_server(Plugins(), server)
    if not server.add_insecure_port(listen):
        raise SystemExit("cannot listen on " + listen)
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
