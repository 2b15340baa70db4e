"""Files that are copied as they are into an output folder. They need torch and safetensors, never dmlc."""
