"""The messages of the Open Inference Protocol's gRPC, health and dlim.v1, as protobuf classes made of tables: no compiler is needed.
Written from the published definitions, apart from the server's own codec."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

KINDS = {"double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "uint32": 13}

OIP = """
ServerLiveRequest
ServerLiveResponse: bool live 1
ServerReadyRequest
ServerReadyResponse: bool ready 1
ModelReadyRequest: string name 1, string version 2
ModelReadyResponse: bool ready 1
ServerMetadataRequest
ServerMetadataResponse: string name 1, string version 2, *string extensions 3
ModelMetadataRequest: string name 1, string version 2
TensorMetadata: string name 1, string datatype 2, *int64 shape 3
ModelMetadataResponse: string name 1, *string versions 2, string platform 3, *TensorMetadata inputs 4, *TensorMetadata outputs 5
InferParameter: bool bool_param 1, int64 int64_param 2, string string_param 3, double double_param 4, uint64 uint64_param 5
Entry: string key 1, InferParameter value 2
Contents: *bool bool_contents 1, *int32 int_contents 2, *int64 int64_contents 3, *uint32 uint_contents 4, *uint64 uint64_contents 5, *float fp32_contents 6, *double fp64_contents 7, *bytes bytes_contents 8
InputTensor: string name 1, string datatype 2, *int64 shape 3, *Entry parameters 4, Contents contents 5
OutputTensor: string name 1, string datatype 2, *int64 shape 3, *Entry parameters 4, Contents contents 5
RequestedOutput: string name 1, *Entry parameters 2
ModelInferRequest: string model_name 1, string model_version 2, string id 3, *Entry parameters 4, *InputTensor inputs 5, *RequestedOutput outputs 6, *bytes raw_input_contents 7
ModelInferResponse: string model_name 1, string model_version 2, string id 3, *Entry parameters 4, *OutputTensor outputs 5, *bytes raw_output_contents 6
ModelStreamInferResponse: string error_message 1, ModelInferResponse infer_response 2
RepositoryIndexRequest: string repository_name 1, bool ready 2
ModelIndex: string name 1, string version 2, string state 3, string reason 4
RepositoryIndexResponse: *ModelIndex models 1
RepositoryModelLoadRequest: string repository_name 1, string model_name 2
RepositoryModelLoadResponse
RepositoryModelUnloadRequest: string repository_name 1, string model_name 2
RepositoryModelUnloadResponse
InferRequest: string id 1, bytes data 2
InferResponse: string id 1, bytes data 2, uint32 status 3, string message 4, bool final 5
HealthCheckRequest: string service 1
HealthCheckResponse: int32 status 1
"""


def _classes():
    file = descriptor_pb2.FileDescriptorProto(name="shoal_test.proto", package="inference", syntax="proto3")
    for line in OIP.strip().splitlines():
        name, _, fields = line.partition(":")
        message = file.message_type.add(name=name.strip())
        for field in filter(None, (one.strip() for one in fields.split(","))):
            kind, label, number = field.split()
            made = message.field.add(name=label, number=int(number), label=3 if kind[0] == "*" else 1)
            kind = kind.lstrip("*")
            if kind in KINDS:
                made.type = KINDS[kind]
            else:
                made.type, made.type_name = 11, ".inference." + kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {one.name: message_factory.GetMessageClass(pool.FindMessageTypeByName("inference." + one.name)) for one in file.message_type}


globals().update(_classes())
