module fdbfifo/fdbkv

go 1.26.0

require (
	fdbfifo v0.0.0
	github.com/apple/foundationdb/bindings/go v0.0.0-20250221231555-5140696da2df
	github.com/google/uuid v1.6.0
	github.com/stretchr/testify v1.12.1
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect

replace fdbfifo => ../
