"""A GGUF file with the numbers of a quantized one in F16: a model in 16 bits that quantizers read, lorad's and others'."""

import gguf
import numpy


def widen(file, to, change=lambda name, values: values):
    """Writes it; fields, norms and biases are copied, matrices are what change makes of them."""
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(to, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type", "general.quantization_version"):
            continue
        kind = field.types[0]
        writer.add_key_value(name, field.contents(), kind, sub_type=field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        is_matrix = len(tensor.shape) > 1
        writer.add_tensor(tensor.name, change(tensor.name, values).astype(numpy.float16) if is_matrix else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
