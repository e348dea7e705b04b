"""The one door to CDKTF: `cdktf` and `aws` here re-export what the stacks use, and make importing it cheap.

CDKTF was archived in December 2025; its fork, CDK Terrain, renamed the packages. With every import in this folder
the move is a change of these few files.
"""
