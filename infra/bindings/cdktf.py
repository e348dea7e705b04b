"""What the stacks use of CDKTF itself."""

from infra.bindings import runtime as runtime

# isort: split
from cdktf import App as App
from cdktf import ITerraformDependable as ITerraformDependable
from cdktf import LocalBackend as LocalBackend
from cdktf import S3Backend as S3Backend
from cdktf import TerraformElement as TerraformElement
from cdktf import TerraformOutput as TerraformOutput
from cdktf import TerraformResource as TerraformResource
from cdktf import TerraformStack as TerraformStack
