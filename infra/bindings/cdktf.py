"""What the stacks use of CDKTF itself."""

from infra.bindings import runtime as runtime

# isort: split
from cdktf import App as App
from cdktf import LocalBackend as LocalBackend
from cdktf import S3Backend as S3Backend
from cdktf import TerraformOutput as TerraformOutput
from cdktf import TerraformStack as TerraformStack
