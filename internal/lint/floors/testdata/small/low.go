package small

func low() int {
	top(nil, nil)
	return generic[int]{value: 1}.get()
}
